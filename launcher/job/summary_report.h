// What ruedarun --summary prints: one screen, however many ranks there were. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collectives/base/types.h"
#include "launcher/job/exit_report.h"
#include "proto/messages.h"

namespace rueda::launcher {

// Lines without the "ruedarun: " in front. summaries: of those ranks that sent one. ends: tell what
// memory the others had.
std::vector<std::string> summary_report(const std::map<Rank, wire::RankSummary>& summaries,
                                        int ranks, const std::vector<RankEnd>& ends = {});

}  // namespace rueda::launcher

// Vitals as `rueda top` gets them. Pure.
#pragma once

#include <string>

#include "launcher/observe/status_report.h"
#include "launcher/observe/vitals.h"

namespace rueda::launcher {

// The question of `rueda top`, answered by vitals_json; and that about one rank, whose number
// follows, answered by rank_story.
inline constexpr std::string_view kVitalsQuestion = "vitals";
inline constexpr std::string_view kRankQuestion = "rank ";

// One object. Times are seconds since the process first joined its job, but for "now", which is
// seconds of its host's clock; "late_seconds": ranks have slept until that one came, all together.
std::string vitals_json(const JobVitals& job);

// A rank's last operations and its stacks, for people.
std::string rank_story(const RankRecord& record, int64_t now_ns);
// The rank that is asked about; empty: the question is none of these.
std::optional<Rank> asked_rank(std::string_view question);

}  // namespace rueda::launcher

// How the ranks of a job that measures itself find each other, and how such a job is started.
#pragma once

#include <string>
#include <vector>

#include "launcher/tools/bench/librueda.h"
#include "launcher/tools/bench/meeting.h"

namespace rueda::bench {

// Rank 0's meeting file (of memory, without a name) on every rank. given: the
// file to use, empty for one of their own. Collective.
Result<Meeting> meet(const LibRueda& api, rueda_context* context, const std::string& given);

// True if a launcher has told this process that it is one of several.
bool is_a_rank();

// ruedarun beside this program, "-np N --no-prefix", this program, "bench" and the arguments.
std::vector<std::string> job_command(int ranks, const std::vector<std::string>& arguments);

}  // namespace rueda::bench

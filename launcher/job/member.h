// A member is one process of the job, for as long as it lives; its number is never given again. A
// rank is its number in one epoch. What outlives an epoch goes by members; what people see says
// ranks.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/job/host_plan.h"
#include "runtime/observe/life/life_page.h"

namespace rueda::launcher {

using MemberId = uint64_t;
using life::kNoMember;

// Those that a job begins with have the numbers of their ranks.
inline MemberId first_member(Rank rank) { return static_cast<MemberId>(rank); }

// A process that is to be started, and the rank that it can expect.
struct MemberStart {
  MemberId member = kNoMember;
  RankPlace place;
  std::string host = {};  // where, as an elastic job names it
  int slot = -1;          // of that host; -1: the place's local rank
};

}  // namespace rueda::launcher

// What may happen next in a MembershipModel.
#pragma once

#include <functional>
#include <string>

#include "tests/simulation/membership_model.h"

namespace rueda::testing {

struct HealSetup {
  int ranks = 3;           // to start with
  int newcomers = 0;       // that may be started later
  bool free_slot = false;  // for one of them; else only in the slot of a lost one
  int steps = 2;
  int batches = 1;  // of a step
  int faults = 2;
  bool kills = true, cuts = true, take_overs = true;
  HealBug bug = HealBug::kNone;
};

MembershipModel first_state(const HealSetup& setup);

struct HealMove {
  MembershipModel to;
  const char* broken;  // "" or what must never be
  bool is_fault;       // which nobody has to do
};
// Every state that can follow, each with one `move`.
void each_move(const MembershipModel& from, const HealSetup& setup,
               const std::function<void(const HealMove&)>& move);
// It is over for all that the decider sees.
bool is_end(const MembershipModel& at);

}  // namespace rueda::testing

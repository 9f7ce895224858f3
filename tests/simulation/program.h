// What each rank of a simulated job does: steps of tensors, in an order of its own, with everything
// that disturbs a step plan. Made from a seed.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/config.h"
#include "proto/messages.h"
#include "tests/simulation/sim_world.h"

namespace rueda::testing {

struct Action {
  enum class Kind { kSubmit, kWait, kPoll, kThink, kLeave };
  Kind kind = Kind::kSubmit;
  std::vector<wire::Request> requests;  // kSubmit: at once
  std::string name;                     // kWait: a thread blocks on it; kPoll: looks again
  int step = 0;
  int64_t think_ns = 0;  // kThink; 0: random
};

struct Job {
  Rank size = 1;
  Config config;
  std::vector<std::vector<Action>> ranks;
  bool someone_leaves = false;  // early: the others' later tensors fail
  int64_t crash_at = -1;        // ns; that rank dies
  Rank crasher = 0;
  int mismatches = 0;      // tensors that all ranks see fail
  int64_t retune_at = -1;  // ns
  bool joins = false;      // ranks make different numbers of steps, and join
};

Job random_job(uint64_t seed);
// The same with joins, several times.
Job joining_job(uint64_t seed);
// The same tensors again and again; nobody deviates.
Job steady_job(Rank size, int steps, int tensors, bool blocking);

}  // namespace rueda::testing

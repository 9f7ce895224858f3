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

// Two ranks lose the connection between them.
struct Cut {
  int64_t at = -1;  // ns; -1: never
  Rank one = 0;
  Rank other = 0;
};

struct Job {
  Rank size = 1;
  int ranks_per_host = 6;   // the last host may have fewer
  bool one_stream = false;  // between hosts: a last word comes behind the data sent before
  Config config;
  std::vector<std::vector<Action>> ranks;
  bool someone_leaves = false;  // early: the others' later tensors fail
  int64_t crash_at = -1;        // ns; that rank dies
  Rank crasher = 0;
  Cut cut;
  int mismatches = 0;        // tensors that all ranks see fail
  int64_t retune_at = -1;    // ns
  int64_t retune_every = 0;  // ns, from then on; 0: once
  bool joins = false;        // ranks make different numbers of steps, and join

  bool on_one_host() const { return size <= ranks_per_host; }
};

Job random_job(uint64_t seed);
// The same with joins, several times.
Job joining_job(uint64_t seed);
// Plans that end soon, one after the other.
Job restless_job(uint64_t seed);
// On several hosts, of one or two ranks each, if there are ranks enough; streams as the seed says.
Job between_hosts(Job job, uint64_t seed);
// The same tensors again and again; nobody deviates.
Job steady_job(Rank size, int steps, int tensors, bool blocking);

}  // namespace rueda::testing

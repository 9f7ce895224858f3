// The step plan and what its follower and the one who runs it tell each other, as values.
//
// A plan is a cyclic list of batches. Batches are entered in the plan's order and counted from 0 in
// each generation: batch number n is plan.batches[n mod size].
//
//   follower                                       who runs batches (its owner)
//   --------                                       ----------------------------
//   EnterBatch{members}  -----------------------------> takes them; peers see it at once or later
//   RevokePlan{last word}  ---------------------------> publishes it for good and wakes the peers
//          <------------------------------- Progress{finished here, last word of each rank}
//   EndPlan{M}  ------------------ all batches < M have run --> drops what was entered beyond
//          <------------------------------------------------- the handles of that
//
//   batch n runs   if and only if every rank has entered it
//   last word      of a rank: how many batches it has entered. After it, it enters nothing more
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "collectives/base/types.h"
#include "runtime/plan/op_handle.h"

namespace rueda::plan {

// What all ranks call one agreement: each rank's own request, and the sizes that follow from them.
// Given by the root, never twice.
using CacheId = uint64_t;
// What one rank calls one of its own requests. Several cache ids may be about it: the other ranks'
// rows differed. It never leaves the rank.
using RequestId = uint64_t;

struct PlannedBatch {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  std::vector<CacheId> ids;  // the members' cache ids, in the order of their batch
  uint32_t protocol = 0;     // as in wire::Response
};

// Frozen by a response, the same on every rank.
struct StepPlan {
  uint64_t generation = 0;  // 1, 2, ... in the order in which the root froze them
  std::vector<PlannedBatch> batches;
};

// ---- what the follower asks for

// The next batch; handles in the order of its ids. Its requests end when it has run. The span is
// the follower's memory: it stays as it is until one of these operations has ended.
struct EnterBatch {
  std::span<const OpHandle> handles;
};

// This rank enters nothing more. What it has entered stays entered.
struct RevokePlan {
  uint64_t last_word = 0;
};

// Batches from this number on do not run: some rank has not entered `first` and never will, so
// their user memory has not been and will not be written. All before have run here. The owner
// answers with the handles of those that it had taken, in order.
struct EndPlan {
  uint64_t first = 0;
};

using Action = std::variant<EnterBatch, RevokePlan, EndPlan>;

// ---- what it hears: the generation in force, as its owner sees it now
struct Progress {
  uint64_t finished = 0;  // batches that have run to their end here
  // What batches need is being made, in a bounded time: that nothing ends meanwhile says nothing.
  bool starting = false;
  // By rank; empty while that rank has not revoked, or is not seen to have.
  std::span<const std::optional<uint64_t>> last_words;
};

}  // namespace rueda::plan

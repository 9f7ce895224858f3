// What a call allocates for itself, in bytes: the executor allocates exactly this, and a test
// compares.
#pragma once

#include "attention/plan.h"

namespace rueda::attention {

struct Workspace {
  int64_t saved = 0;    // q, k, v, out, lse of this rank, and what forward keeps for backward
  int64_t forward = 0;  // slots and partial sums, without the kernel's fixed scratch (< 4 MiB)
  int64_t backward = 0;
};

Workspace workspace_of(const AttentionPlan& plan);

// Floats of the largest message of keys and values as float32, where they travel as int8; else 0.
int64_t widened_floats(const AttentionPlan& plan, const RingPlan& ring);

// How many exchanges ahead of the one that is computed rows are received and sent, and how many
// behind it answers are merged: fewer, and the link or the arithmetic waits for a slot
// (tests/attention/schedule_test.cc).
inline constexpr int64_t kReceivesAhead = 3, kSendsAhead = 2, kMergesBehind = 2;
// Message slots of one direction of a ring: what is ahead, or one for each hop where everything is
// received first.
inline int64_t receive_slots(const AttentionPlan& plan, const RingPlan& ring) {
  const auto hops = static_cast<int64_t>(ring.receives.size());
  return plan.spec.gather_first ? hops : std::min<int64_t>(kReceivesAhead, hops);
}
inline int64_t send_slots(const RingPlan& ring) {
  return std::min<int64_t>(kSendsAhead, static_cast<int64_t>(ring.sends.size()));
}
// Of answers that are sent, and of those that are awaited: to what is ahead, computed, or behind.
inline int64_t answer_slots(const RingPlan& ring) {
  return std::min<int64_t>(3, static_cast<int64_t>(ring.receives.size()));
}
inline int64_t awaited_slots(const RingPlan& ring) {
  return std::min<int64_t>(kSendsAhead + 1 + kMergesBehind,
                           static_cast<int64_t>(ring.sends.size()));
}

}  // namespace rueda::attention

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

// Message slots of one direction of a ring: two, or one for each hop where everything is received
// first.
inline int64_t receive_slots(const AttentionPlan& plan, const RingPlan& ring) {
  const auto hops = static_cast<int64_t>(ring.receives.size());
  return plan.spec.gather_first ? hops : std::min<int64_t>(2, hops);
}

}  // namespace rueda::attention

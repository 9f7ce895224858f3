#include "attention/workspace.h"

#include <algorithm>

#include "attention/wire.h"

namespace rueda::attention {
namespace {

struct Largest {
  int64_t out = 0, back = 0;
};

Largest largest(const AttentionPlan& plan, bool backward, const std::vector<Hop>& hops) {
  Largest most;
  for (const Hop& hop : hops) {
    const RowBytes bytes = hop_bytes(plan, backward, hop);
    most.out = std::max(most.out, bytes.out);
    most.back = std::max(most.back, bytes.back);
  }
  return most;
}

int64_t slots(const AttentionPlan& plan, bool backward) {
  const RingPlan& ring = backward ? plan.backward : plan.forward;
  const Largest in = largest(plan, backward, ring.receives);
  const Largest out = largest(plan, backward, ring.sends);
  return 4 * widened_floats(plan, ring) + receive_slots(plan, ring) * in.out +
         send_slots(ring) * out.out + answer_slots(ring) * in.back + awaited_slots(ring) * out.back;
}

}  // namespace

int64_t widened_floats(const AttentionPlan& plan, const RingPlan& ring) {
  if (plan.spec.kv_wire != DType::kInt8 || ring.rotate != Rotate::kKeysAndValues) return 0;
  const bool backward = &ring == &plan.backward;
  int64_t most = 0;
  for (const Hop& hop : ring.receives)
    most = std::max(most, hop_bytes(plan, backward, hop).out / wire_bytes(plan.spec));
  return most * 2 * plan.spec.head_dim;
}

Workspace workspace_of(const AttentionPlan& plan) {
  const AttentionSpec& spec = plan.spec;
  const int64_t d = spec.head_dim, e = static_cast<int64_t>(size_of(spec.dtype)), b = spec.batch;
  const int64_t q_heads = plan.heads.q_end - plan.heads.q_begin;
  const int64_t kv_heads = plan.heads.kv_end - plan.heads.kv_begin;
  const int64_t rows = plan.group_tokens() * b;
  const int64_t own = plan.own_tokens() * b, own_keys = plan.own_keys() * b;
  Workspace result;
  const bool exchanges = spec.ulysses > 1;
  const int64_t q = rows * q_heads * d, kv = plan.group_keys() * b * kv_heads * d;
  const bool narrow = e != 4;
  const int64_t low = narrow ? 0 : rows * q_heads * 4;  // what lse lacks
  const int64_t shards = exchanges ? (2 * q + 2 * kv) * e + rows * q_heads * 4 : 0;
  result.saved = (own * spec.heads + own_keys * spec.kv_heads) * 2 * d * e + own * spec.heads * 4 +
                 low + shards;
  result.forward = 2 * rows * q_heads * 4 + (narrow ? q * 4 : 0) + slots(plan, false);
  result.backward = 2 * rows * q_heads * 4 + (narrow ? (q + 2 * kv) * 4 : 0) + slots(plan, true);
  if (exchanges) {
    // dO, dq, dk, dv of the group, beside the gradients above.
    result.backward += (2 * q + 2 * kv) * e;
  }
  return result;
}

}  // namespace rueda::attention

// Attention of one rank's place in the ring: what is left when heads have been exchanged for
// tokens, or all of it where ulysses is 1. Tensors are of the plan's group: group_tokens() rows and
// the heads of the plan's share.
#pragma once

#include "attention/executor.h"

namespace rueda::attention {

// lse: (batch, rows, heads of the share), not (batch, heads, rows).
struct ShardForward {
  const std::byte* q = nullptr;
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::byte* out = nullptr;
  float* lse = nullptr;
  float* lse_low = nullptr;  // may be null
};
struct ShardBackward {
  const std::byte* dout = nullptr;
  const float* delta = nullptr;  // as lse lies
  const std::byte* q = nullptr;
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  const float* lse = nullptr;
  std::byte* dq = nullptr;
  std::byte* dk = nullptr;
  std::byte* dv = nullptr;
  bool wide_kv_gradients = false;  // dk and dv are float32 whatever the dtype
  const float* lse_low = nullptr;  // may be null
};

Status forward_shard(const AttentionPlan& plan, Link* link, int threads, const ShardForward& t);
Status backward_shard(const AttentionPlan& plan, Link* link, int threads, const ShardBackward& t);

}  // namespace rueda::attention

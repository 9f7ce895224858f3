// One rank's call on tensors of the host.
//
// Partial sums are float32 whatever the dtype, added in the plan's order: the same bits each time.
// Tensors are (batch, tokens or keys of this rank, heads, head_dim), dense; lse is (batch, heads,
// tokens) in float32, natural logarithm, -infinity for a query that sees no key.
#pragma once

#include <memory>
#include <vector>

#include "attention/link.h"
#include "attention/means.h"
#include "attention/plan.h"

namespace rueda::attention {

// What forward keeps for backward beside the caller's tensors: what float32 cannot hold of the
// log-sum-exp (of float32 inputs: at scores of 10^4 it matters), and with Ulysses the head-sharded
// ones.
struct Saved {
  std::vector<std::byte> q, k, v;
  std::vector<float> lse;
  std::vector<float> lse_low;  // (batch, rows, heads of the share)
  bool filled = false;
};

struct ForwardTensors {
  const std::byte* q = nullptr;
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::byte* out = nullptr;
  float* lse = nullptr;  // may be null
};

struct BackwardTensors {
  const std::byte* dout = nullptr;
  const float* dlse = nullptr;  // may be null: zeros
  const std::byte* q = nullptr;
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  const std::byte* out = nullptr;
  const float* lse = nullptr;
  std::byte* dq = nullptr;
  std::byte* dk = nullptr;
  std::byte* dv = nullptr;
};

// Errors name the pass, the step and the peer. saved may be null
// if no backward follows, or where spec.ulysses is 1: gradients are then as good as lse.
Status forward(const AttentionPlan& plan, Link* link, const Means& means,
               const ForwardTensors& tensors, Saved* saved);
Status backward(const AttentionPlan& plan, Link* link, const Means& means,
                const BackwardTensors& tensors, const Saved* saved);

}  // namespace rueda::attention

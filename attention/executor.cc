#include "attention/executor.h"

#include <algorithm>

#include "attention/exchange.h"
#include "attention/shards.h"
#include "collectives/kernels/kernels.h"

namespace rueda::attention {
namespace {

// (batch, heads, rows) <-> (batch, rows, heads).
void transpose(const float* from, int64_t batch, int64_t rows, int64_t columns, float* to) {
  for (int64_t b = 0; b < batch; ++b, from += rows * columns, to += rows * columns) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
    }
  }
}

// In eight sums, so that none waits for the one before.
double dot(const float* a, const float* b, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += static_cast<double>(a[i + j]) * b[i + j];
  }
  for (; i < count; ++i) sums[i % 8] += static_cast<double>(a[i]) * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// delta = sum(dout * out) - dlse, in float32.
void make_delta(const AttentionSpec& spec, const BackwardTensors& t, const float* dlse,
                int64_t rows, float* delta) {
  const int64_t d = spec.head_dim;
  const auto bytes = static_cast<int64_t>(size_of(spec.dtype));
  std::vector<float> a(static_cast<size_t>(d)), b(static_cast<size_t>(d));
  for (int64_t i = 0; i < rows; ++i) {
    const std::byte* x = t.dout + i * d * bytes;
    const std::byte* y = t.out + i * d * bytes;
    const auto* left = reinterpret_cast<const float*>(x);
    const auto* right = reinterpret_cast<const float*>(y);
    if (bytes == 2) {
      kernels::convert_to_f32(spec.dtype, x, a.data(), a.size());
      kernels::convert_to_f32(spec.dtype, y, b.data(), b.size());
      left = a.data();
      right = b.data();
    }
    const double sum = dot(left, right, d);
    delta[i] = static_cast<float>(sum - (dlse == nullptr ? 0.0 : static_cast<double>(dlse[i])));
  }
}

// Room for what the log-sum-exp of float32 inputs loses; of 16 bits the inputs' rounding is more.
float* keep_low(const AttentionPlan& plan, Saved* saved) {
  if (saved == nullptr || plan.spec.dtype != DType::kFloat32) return nullptr;
  const int64_t heads = plan.heads.q_end - plan.heads.q_begin;
  saved->lse_low.resize(static_cast<size_t>(plan.spec.batch * plan.group_tokens() * heads));
  return saved->lse_low.data();
}

const float* low_of(const Saved* saved) {
  return saved == nullptr || saved->lse_low.empty() ? nullptr : saved->lse_low.data();
}

struct Sizes {
  explicit Sizes(const AttentionPlan& plan)
      : batch(plan.spec.batch),
        own_keys(plan.own_keys()),
        group(plan.group_tokens()),
        group_keys(plan.group_keys()),
        q_heads(plan.heads.q_end - plan.heads.q_begin),
        kv_heads(plan.heads.kv_end - plan.heads.kv_begin),
        d(plan.spec.head_dim),
        bytes(static_cast<int64_t>(size_of(plan.spec.dtype))) {}
  int64_t batch, own_keys, group, group_keys, q_heads, kv_heads, d, bytes;
};

template <typename T>
T* writable(const T* memory) {
  return const_cast<T*>(memory);  // an exchange only reads the side that it sends
}
std::byte* as_bytes(float* floats) { return reinterpret_cast<std::byte*>(floats); }

Status forward_exchanged(const AttentionPlan& plan, Link* link, int threads,
                         const ForwardTensors& t, float* lse, Saved* saved) {
  const Sizes s(plan);
  Saved local;
  Saved& kept = saved == nullptr ? local : *saved;
  kept.filled = true;
  const auto q_size = static_cast<size_t>(s.batch * s.group * s.q_heads * s.d * s.bytes);
  const auto kv_size = static_cast<size_t>(s.batch * s.group_keys * s.kv_heads * s.d * s.bytes);
  kept.q.resize(q_size);
  kept.k.resize(kv_size);
  kept.v.resize(kv_size);
  kept.lse.resize(static_cast<size_t>(s.batch * s.group * s.q_heads));
  RUEDA_RETURN_IF_ERROR(exchange(plan, link, true,
                                 {{writable(t.q), kept.q.data(), false, s.d, s.bytes},
                                  {writable(t.k), kept.k.data(), true, s.d, s.bytes},
                                  {writable(t.v), kept.v.data(), true, s.d, s.bytes}},
                                 "attention forward, exchange of heads"));
  std::byte* out = link->take(static_cast<int64_t>(q_size));
  RUEDA_RETURN_IF_ERROR(forward_shard(
      plan, link, threads,
      {kept.q.data(), kept.k.data(), kept.v.data(), out, kept.lse.data(), keep_low(plan, saved)}));
  return exchange(
      plan, link, false,
      {{as_bytes(lse), as_bytes(kept.lse.data()), false, 1, 4}, {t.out, out, false, s.d, s.bytes}},
      "attention forward, exchange of the result");
}

Status backward_exchanged(const AttentionPlan& plan, Link* link, int threads,
                          const BackwardTensors& t, float* delta, const Saved& saved) {
  const Sizes s(plan);
  const bool replicated = replicates_kv(plan.spec);
  const int64_t kv_bytes = replicated ? 4 : s.bytes;
  std::byte* dout = link->take(s.batch * s.group * s.q_heads * s.d * s.bytes);
  std::byte* dq = link->take(s.batch * s.group * s.q_heads * s.d * s.bytes);
  std::byte* dk = link->take(s.batch * s.group_keys * s.kv_heads * s.d * kv_bytes);
  std::byte* dv = link->take(s.batch * s.group_keys * s.kv_heads * s.d * kv_bytes);
  float* deltas = link->take_array<float>(s.batch * s.group * s.q_heads);
  RUEDA_RETURN_IF_ERROR(exchange(plan, link, true,
                                 {{as_bytes(delta), as_bytes(deltas), false, 1, 4},
                                  {writable(t.dout), dout, false, s.d, s.bytes}},
                                 "attention backward, exchange of heads"));
  RUEDA_RETURN_IF_ERROR(
      backward_shard(plan, link, threads,
                     {dout, deltas, saved.q.data(), saved.k.data(), saved.v.data(),
                      saved.lse.data(), dq, dk, dv, replicated, low_of(&saved)}));
  // A head that several ranks have computed with: its gradients are added, in float32.
  const int64_t own = s.batch * s.own_keys * plan.spec.kv_heads * s.d;
  std::byte *sum_k = t.dk, *sum_v = t.dv;
  if (replicated) {
    if (s.bytes != 4) {
      sum_k = link->take(own * 4);
      sum_v = link->take(own * 4);
    }
    std::fill_n(reinterpret_cast<float*>(sum_k), own, 0.0f);
    std::fill_n(reinterpret_cast<float*>(sum_v), own, 0.0f);
  }
  RUEDA_RETURN_IF_ERROR(exchange(plan, link, false,
                                 {{sum_k, dk, true, s.d, kv_bytes, replicated},
                                  {sum_v, dv, true, s.d, kv_bytes, replicated},
                                  {t.dq, dq, false, s.d, s.bytes}},
                                 "attention backward, exchange of gradients"));
  if (replicated && s.bytes != 4) {
    const auto count = static_cast<size_t>(own);
    kernels::convert_from_f32(plan.spec.dtype, reinterpret_cast<float*>(sum_k), t.dk, count);
    kernels::convert_from_f32(plan.spec.dtype, reinterpret_cast<float*>(sum_v), t.dv, count);
  }
  return {};
}

}  // namespace

Status forward(const AttentionPlan& plan, Link* link, int threads, const ForwardTensors& t,
               Saved* saved) {
  const int64_t rows = plan.own_tokens(), heads = plan.spec.heads;
  float* lse = link->take_array<float>(plan.spec.batch * rows * heads);
  if (plan.spec.ulysses > 1) {
    RUEDA_RETURN_IF_ERROR(forward_exchanged(plan, link, threads, t, lse, saved));
  } else {
    RUEDA_RETURN_IF_ERROR(
        forward_shard(plan, link, threads, {t.q, t.k, t.v, t.out, lse, keep_low(plan, saved)}));
  }
  if (t.lse != nullptr) transpose(lse, plan.spec.batch, rows, heads, t.lse);
  return {};
}

Status backward(const AttentionPlan& plan, Link* link, int threads, const BackwardTensors& t,
                const Saved* saved) {
  const int64_t rows = plan.own_tokens(), heads = plan.spec.heads, batch = plan.spec.batch;
  float* lse = link->take_array<float>(batch * rows * heads);
  float* delta = link->take_array<float>(batch * rows * heads);
  const float* dlse = nullptr;
  if (t.dlse != nullptr) {
    transpose(t.dlse, batch, heads, rows, lse);  // lse has not been written yet
    dlse = lse;
  }
  make_delta(plan.spec, t, dlse, batch * rows * heads, delta);
  if (plan.spec.ulysses > 1) {
    if (saved == nullptr || !saved->filled) {
      return invalid_argument("attention backward: needs what its forward saved");
    }
    return backward_exchanged(plan, link, threads, t, delta, *saved);
  }
  transpose(t.lse, batch, heads, rows, lse);
  return backward_shard(
      plan, link, threads,
      {t.dout, delta, t.q, t.k, t.v, lse, t.dq, t.dk, t.dv, false, low_of(saved)});
}

}  // namespace rueda::attention

// Distributed attention for C++: the ranks of a process set hold the tokens of one sequence.
//
//   namespace ra = rueda::attention;
//   const ra::Plan plan = ra::make_plan(
//       hvd, {.length = 4096, .heads = 8, .head_dim = 64, .layout = ra::Layout::kZigzag,
//             .causal = true});                        // of this rank; any number of calls use it
//   std::vector<float> q(plan.query_size()), k(plan.key_size()), lse(plan.lse_size());
//   auto v = k; auto out = q;
//   ra::Saved saved;
//   ra::forward(hvd, plan, q, k, v, out, lse, &saved).wait();
//   ra::backward(hvd, plan, saved, dout, {}, q, k, v, out, lse, dq, dk, dv).wait();
//
// Tensors are dense, (batch, tokens of this rank, heads, head_dim); lse is (batch, heads, tokens)
// in float, natural logarithm, -infinity for a query that sees no key. Schemes, masks and figures:
// docs/attention.md. All ranks of a process set start their calls in the same order, with equal
// specs.
#ifndef RUEDA_ATTENTION_HPP_
#define RUEDA_ATTENTION_HPP_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "rueda/attention_plan.hpp"
#include "rueda/error.hpp"
#include "rueda/request.hpp"
#include "rueda/rueda.h"
#include "rueda/tensor.hpp"

namespace rueda {
inline namespace api1 {
namespace attention {

// What a forward keeps for its backward, beside the caller's tensors.
class Saved {
 public:
  rueda_attention_saved* handle() const { return handle_.get(); }
  void reset(rueda_attention_saved* handle) { handle_.reset(handle); }

 private:
  struct Release {
    void operator()(rueda_attention_saved* saved) const { rueda_attention_saved_release(saved); }
  };
  std::unique_ptr<rueda_attention_saved, Release> handle_;
};

namespace detail {

template <typename R>
auto checked(R&& data, const char* name, std::size_t size, rueda_dtype dtype) {
  const auto view = api1::detail::view(data);
  require(dtype_of<std::ranges::range_value_t<R>> == dtype,
          std::string("the element type of ") + name + " is not the plan's");
  require(view.size() == size, std::string(name) + " has " + std::to_string(view.size()) +
                                   " elements, the plan gives this rank " + std::to_string(size));
  return view.data();
}
// The context of a plan: none for one that was made without a job.
template <typename Context>
rueda_context* context_of(const Context& hvd) {
  return hvd.handle();
}
inline rueda_context* context_of(std::nullptr_t) { return nullptr; }

}  // namespace detail

// Starts a forward. `hvd` is the plan's Context; nullptr for a plan of one rank made without a job.
// `lse` may be empty (std::span<float>{}) and `saved` null when no backward follows. threads 0:
// this host's cores for each of its ranks.
template <typename Context, Input Q, Input K, Input V, InOut O>
Request forward(const Context& hvd, const Plan& plan, Q&& q, K&& k, V&& v, O&& out,
                std::span<float> lse, Saved* saved = nullptr, int threads = 0) {
  const rueda_dtype dtype = plan.spec().dtype;
  const std::size_t queries = plan.query_size(), keys = plan.key_size();
  const void* in_q = detail::checked(q, "q", queries, dtype);
  const void* in_k = detail::checked(k, "k", keys, dtype);
  const void* in_v = detail::checked(v, "v", keys, dtype);
  void* result = detail::checked(out, "out", queries, dtype);
  float* sums = lse.empty() ? nullptr : detail::checked(lse, "lse", plan.lse_size(), RUEDA_FLOAT32);
  rueda_attention_saved* kept = nullptr;
  rueda_request* request = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  api1::detail::check(
      rueda_attention_forward(detail::context_of(hvd), plan.handle(), plan.spec().process_set,
                              threads, in_q, in_k, in_v, result, sums,
                              saved == nullptr ? nullptr : &kept, &request, &error),
      error);
  if (saved != nullptr) saved->reset(kept);
  return Request(request, dtype);
}

// Starts the backward of a forward, from its tensors. dlse, the gradient of lse, may be empty:
// zeros.
template <typename Context, Input DO, Input Q, Input K, Input V, Input O, InOut DQ, InOut DK,
          InOut DV>
Request backward(const Context& hvd, const Plan& plan, const Saved& saved, DO&& dout,
                 std::span<const float> dlse, Q&& q, K&& k, V&& v, O&& out,
                 std::span<const float> lse, DQ&& dq, DK&& dk, DV&& dv, int threads = 0) {
  const rueda_dtype dtype = plan.spec().dtype;
  const std::size_t queries = plan.query_size(), keys = plan.key_size();
  const std::size_t rows = plan.lse_size();
  rueda_request* request = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  api1::detail::check(
      rueda_attention_backward(
          detail::context_of(hvd), plan.handle(), plan.spec().process_set, threads,
          detail::checked(dout, "dout", queries, dtype),
          dlse.empty() ? nullptr : detail::checked(dlse, "dlse", rows, RUEDA_FLOAT32),
          detail::checked(q, "q", queries, dtype), detail::checked(k, "k", keys, dtype),
          detail::checked(v, "v", keys, dtype), detail::checked(out, "out", queries, dtype),
          detail::checked(lse, "lse", rows, RUEDA_FLOAT32), saved.handle(),
          detail::checked(dq, "dq", queries, dtype), detail::checked(dk, "dk", keys, dtype),
          detail::checked(dv, "dv", keys, dtype), &request, &error),
      error);
  return Request(request, dtype);
}

// A few new queries of each sequence against a key/value cache that the ranks share: token t of a
// sequence lies on rank t % ranks, at place t / ranks of that rank's cache. See docs/attention.md.
struct DecodeSpec {
  std::int64_t queries = 1;  // the last tokens of each sequence; in the cache already
  std::int64_t heads = 1;
  std::int64_t kv_heads = 0;          // divides heads; 0: as many
  std::int64_t head_dim = 0;          // 1 to 256
  rueda_dtype dtype = RUEDA_FLOAT32;  // or RUEDA_BFLOAT16, RUEDA_FLOAT16
  bool own = false;    // q and out are of this rank's share of the sequences, not of all
  bool causal = true;  // of several queries, none sees those behind it
  std::int64_t left = -1, global_tokens = 0;  // sliding window, and what is seen beyond it
  double softmax_scale = 0;                   // 0: head_dim ^ -0.5
  double softcap = 0;                         // scores become softcap * tanh(score / softcap)
  std::vector<float> alibi_slopes = {};       // of each head, or of each sequence and head
  std::vector<std::int64_t> lengths = {};     // of each sequence, on all ranks, new tokens included
  std::vector<float> sinks = {};              // of each head, a score without a value
  // This rank's cache is (blocks, block_tokens, kv_heads, head_dim). block_table: of each sequence,
  // as many blocks, in which its tokens lie in order; empty: sequence i is block i.
  std::int64_t blocks = 0, block_tokens = 1;
  std::vector<std::int32_t> block_table = {};
  int process_set = 0;  // whose ranks: all, or Context::add_process_set
};

// Starts a call. q and out: (sequences, queries, heads, head_dim); lse, (sequences, heads,
// queries), may be empty. `hvd` is a Context; nullptr: the whole cache is here.
template <typename Context, Input Q, Input K, Input V, InOut O>
Request decode(const Context& hvd, const DecodeSpec& spec, Q&& q, K&& k, V&& v, O&& out,
               std::span<float> lse, int threads = 0) {
  rueda_attention_decode_spec c = RUEDA_ATTENTION_DECODE_SPEC_INIT;
  const auto batch = static_cast<std::int64_t>(spec.lengths.size());
  const auto blocks = static_cast<std::int64_t>(spec.block_table.size());
  const std::int64_t row = spec.queries * spec.heads * spec.head_dim;
  c.batch = batch;
  c.queries = spec.queries;
  c.heads = spec.heads;
  c.kv_heads = spec.kv_heads == 0 ? spec.heads : spec.kv_heads;
  c.head_dim = spec.head_dim;
  c.dtype = spec.dtype;
  c.own = spec.own;
  c.causal = spec.causal;
  c.left = spec.left;
  c.global_tokens = spec.global_tokens;
  c.scale = spec.softmax_scale;
  c.softcap = spec.softcap;
  c.alibi_slopes = spec.alibi_slopes.data();
  c.alibi_count = std::ssize(spec.alibi_slopes);
  c.lengths = spec.lengths.data();
  c.sinks = spec.sinks.empty() ? nullptr : spec.sinks.data();
  c.blocks = spec.blocks;
  c.block_tokens = spec.block_tokens;
  c.block_table = spec.block_table.empty() ? nullptr : spec.block_table.data();
  c.table_blocks = batch == 0 ? 0 : blocks / batch;
  const auto elements = static_cast<std::int64_t>(api1::detail::view(q).size());
  detail::require(row > 0 && elements % row == 0, "q is not (sequences, queries, heads, head_dim)");
  detail::require(spec.sinks.empty() || std::ssize(spec.sinks) == spec.heads,
                  "sinks: one for each head");
  detail::require(batch == 0 || blocks % batch == 0,
                  "block_table has other than as many blocks for each");
  c.sequences = elements / row;
  const auto size = static_cast<std::size_t>(elements);
  const auto keys =
      static_cast<std::size_t>(spec.blocks * spec.block_tokens * c.kv_heads * spec.head_dim);
  const auto rows = static_cast<std::size_t>(c.sequences * spec.queries * spec.heads);
  const void* in_q = detail::checked(q, "q", size, spec.dtype);
  const void* in_k = detail::checked(k, "k", keys, spec.dtype);
  const void* in_v = detail::checked(v, "v", keys, spec.dtype);
  void* result = detail::checked(out, "out", size, spec.dtype);
  float* sums = lse.empty() ? nullptr : detail::checked(lse, "lse", rows, RUEDA_FLOAT32);
  rueda_request* request = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  api1::detail::check(rueda_attention_decode(detail::context_of(hvd), &c, spec.process_set, threads,
                                             in_q, in_k, in_v, result, sums, &request, &error),
                      error);
  return Request(request, spec.dtype);
}

}  // namespace attention
}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_ATTENTION_HPP_

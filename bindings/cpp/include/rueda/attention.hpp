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

}  // namespace attention
}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_ATTENTION_HPP_

// What a distributed attention computes, and the plan of one rank: see attention.hpp.
#ifndef RUEDA_ATTENTION_PLAN_HPP_
#define RUEDA_ATTENTION_PLAN_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rueda/error.hpp"
#include "rueda/rueda.h"
#include "rueda/tensor.hpp"

namespace rueda {
inline namespace api1 {
namespace attention {

enum class Layout : std::int32_t { kContiguous = 0, kZigzag = 1, kStriped = 2 };
enum class Rotate : std::int32_t { kAuto = 0, kKeysAndValues = 1, kQueries = 2 };
enum class HeadOffset : std::int32_t { kModulo = 0, kBlock = 1 };

// What is computed and how it is spread; use designated initialisers. Numbers of tokens are of the
// whole sequence.
struct Spec {
  std::int64_t batch = 1;
  std::int64_t length = 0;      // of the queries, where key_length is another
  std::int64_t key_length = 0;  // 0: as many; else the last query stands at the last key
  std::int64_t heads = 1;
  std::int64_t kv_heads = 0;          // divides heads; 0: as many
  std::int64_t head_dim = 0;          // 1 to 256
  rueda_dtype dtype = RUEDA_FLOAT32;  // or RUEDA_BFLOAT16, RUEDA_FLOAT16
  Layout layout = Layout::kContiguous;
  int ulysses_degree = 1;  // ranks that exchange heads for tokens; the others form rings
  Rotate rotate_forward = Rotate::kAuto;
  Rotate rotate_backward = Rotate::kAuto;
  bool gather_first = false;      // all-gather: everything is received before computing
  std::int64_t chunk_tokens = 0;  // bounds the messages; 0: see docs/attention.md
  // What keys and values travel as: RUEDA_BFLOAT16, RUEDA_INT8; -1: dtype.
  std::int32_t compression = -1;
  bool causal = false;
  std::int64_t left = -1, right = -1;         // sliding window; -1: no limit
  double softmax_scale = 0;                   // 0: head_dim ^ -0.5
  double softcap = 0;                         // scores become softcap * tanh(score / softcap)
  std::vector<float> alibi_slopes = {};       // of each head, or of each entry and head
  std::vector<std::int64_t> cu_seqlens = {};  // packed sequences: 0, ..., length
  std::vector<std::int64_t> cu_seqlens_k = {};
  bool layout_per_sequence = false;
  std::vector<std::int64_t> segment_lengths = {}, dilation_rates = {};  // LongNet's pairs
  HeadOffset head_offset = HeadOffset::kModulo;
  bool split_heads = false;
  // Block mask, block_heads x n x n with n = ceil(length / block): what is not 0 is seen.
  std::int64_t block = 0, block_heads = 1;
  std::vector<std::uint8_t> blocks = {};
  int process_set = 0;  // whose ranks: all, or Context::add_process_set
};

// What one rank does in an attention. Any number of calls may use it, at once too.
//
// Ownership: movable; outlives the calls that use it.
class Plan {
 public:
  Plan(rueda_attention_plan* handle, const Spec& spec) : handle_(handle), spec_(spec) {
    const auto count = static_cast<std::int32_t>(numbers_.size());
    rueda_attention_plan_report(handle, numbers_.data(), count);
    if (spec_.kv_heads == 0) spec_.kv_heads = spec_.heads;
  }

  const Spec& spec() const { return spec_; }
  rueda_attention_plan* handle() const { return handle_.get(); }
  // Elements of this rank's tensors: of q, out and their gradients; of k, v and theirs; of lse.
  std::size_t query_size() const { return size(tokens(), spec_.heads * spec_.head_dim); }
  std::size_t key_size() const { return size(keys(), spec_.kv_heads * spec_.head_dim); }
  std::size_t lse_size() const { return size(tokens(), spec_.heads); }
  // Equal on all ranks whose calls fit together.
  std::uint64_t hash() const { return static_cast<std::uint64_t>(numbers_[0]); }
  std::int64_t tokens() const { return numbers_[1]; }  // of this rank
  std::int64_t keys() const { return numbers_[15]; }
  // Of this rank and one call. Bytes, but for the operations.
  std::int64_t bytes_sent_forward() const { return numbers_[6]; }
  std::int64_t bytes_sent_backward() const { return numbers_[7]; }
  std::int64_t flops_forward() const { return numbers_[10]; }
  std::int64_t flops_backward() const { return numbers_[11]; }
  std::int64_t saved_bytes() const { return numbers_[12]; }
  std::int64_t workspace_forward() const { return numbers_[13]; }
  std::int64_t workspace_backward() const { return numbers_[14]; }
  // Largest over mean work of all ranks.
  double balance() const { return rueda_attention_plan_balance(handle()); }

 private:
  struct Release {
    void operator()(rueda_attention_plan* plan) const { rueda_attention_plan_release(plan); }
  };
  std::size_t size(std::int64_t rows, std::int64_t width) const {
    return static_cast<std::size_t>(spec_.batch * rows * width);
  }

  std::unique_ptr<rueda_attention_plan, Release> handle_;
  Spec spec_;
  std::array<std::int64_t, 16> numbers_{};
};

namespace detail {

inline void require(bool holds, const std::string& otherwise) {
  if (!holds) throw Error(RUEDA_INVALID_ARGUMENT, "attention: " + otherwise);
}

inline Plan plan_of(rueda_context* context, const Spec& spec, int rank, int ranks) {
  require(spec.segment_lengths.size() == spec.dilation_rates.size(),
          "segment_lengths and dilation_rates differ in length");
  require(spec.cu_seqlens_k.empty() || spec.cu_seqlens_k.size() == spec.cu_seqlens.size(),
          "cu_seqlens_k needs as many entries as cu_seqlens");
  rueda_attention_spec c = RUEDA_ATTENTION_SPEC_INIT;
  c.batch = spec.batch;
  c.length = spec.length;
  c.key_length = spec.key_length;
  c.heads = spec.heads;
  c.kv_heads = spec.kv_heads == 0 ? spec.heads : spec.kv_heads;
  c.head_dim = spec.head_dim;
  c.dtype = spec.dtype;
  c.kv_wire = spec.compression < 0 ? spec.dtype : spec.compression;
  c.layout = static_cast<std::int32_t>(spec.layout);
  c.ulysses = spec.ulysses_degree;
  c.rotate_forward = static_cast<std::int32_t>(spec.rotate_forward);
  c.rotate_backward = static_cast<std::int32_t>(spec.rotate_backward);
  c.gather_first = spec.gather_first ? 1 : 0;
  c.causal = spec.causal ? 1 : 0;
  c.chunk_tokens = spec.chunk_tokens;
  c.left = spec.left;
  c.right = spec.right;
  c.scale = spec.softmax_scale;
  c.softcap = spec.softcap;
  c.alibi_slopes = spec.alibi_slopes.data();
  c.alibi_count = std::ssize(spec.alibi_slopes);
  c.cu_seqlens = spec.cu_seqlens.data();
  c.cu_seqlens_count = std::ssize(spec.cu_seqlens);
  c.cu_seqlens_k = spec.cu_seqlens_k.empty() ? nullptr : spec.cu_seqlens_k.data();
  c.segment_lengths = spec.segment_lengths.data();
  c.dilation_rates = spec.dilation_rates.data();
  c.pair_count = std::ssize(spec.segment_lengths);
  c.head_offset = static_cast<std::int32_t>(spec.head_offset);
  c.split_heads = spec.split_heads ? 1 : 0;
  c.layout_per_sequence = spec.layout_per_sequence ? 1 : 0;
  if (spec.block > 0 && spec.length > 0) {
    const std::int64_t rows = (spec.length - 1) / spec.block + 1;
    const auto side = std::to_string(rows);
    require(spec.block_heads >= 1 && std::ssize(spec.blocks) % spec.block_heads == 0 &&
                std::ssize(spec.blocks) / spec.block_heads / rows == rows &&
                std::ssize(spec.blocks) / spec.block_heads % rows == 0,
            "blocks has " + std::to_string(spec.blocks.size()) +
                " entries, expected block_heads x " + side + " x " + side);
  }
  c.block = spec.block;
  c.block_heads = spec.block_heads;
  c.blocks = spec.blocks.empty() ? nullptr : spec.blocks.data();
  rueda_attention_plan* plan = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  api1::detail::check(
      rueda_attention_plan_create(context, &c, spec.process_set, rank, ranks, &plan, &error),
      error);
  return {plan, spec};
}

}  // namespace detail

// This rank's plan. `hvd` is a Context.
template <typename Context>
Plan make_plan(const Context& hvd, const Spec& spec) {
  return detail::plan_of(hvd.handle(), spec, 0, 1);
}
// The plan of `rank` of `ranks`, without a job: to look at; of one rank also to compute with.
inline Plan make_plan(const Spec& spec, int rank, int ranks) {
  return detail::plan_of(nullptr, spec, rank, ranks);
}
// Positions of a rank's tokens in the whole sequence, in the order of its tensors.
inline std::vector<std::int64_t> tokens_of(Layout layout, std::int64_t length, int rank,
                                           int ranks) {
  const auto code = static_cast<std::int32_t>(layout);
  const std::int64_t count = rueda_attention_tokens(code, length, rank, ranks, nullptr, 0);
  detail::require(count >= 0, "no such rank, layout or length");
  std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
  rueda_attention_tokens(code, length, rank, ranks, positions.data(), count);
  return positions;
}

}  // namespace attention
}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_ATTENTION_PLAN_HPP_

// AttentionSpec: what a distributed attention computes and how it is spread, in integers. Equal on
// all ranks; what follows from it is the plan (plan.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/runs.h"
#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::attention {

// Which rank holds which tokens.
//   contiguous  rank r has the r-th part
//   zigzag      2P chunks, rank r has chunks r and 2P-1-r: equal work under a causal mask
//   striped     rank r has tokens r, r+P, r+2P, ...: equal work under any smooth mask
// The sequence may have any length; shards differ by one token at most.
enum class Layout : uint8_t { kContiguous = 0, kZigzag = 1, kStriped = 2 };

// What travels between the ranks of a ring. Automatic: what takes fewer bytes.
enum class Rotate : uint8_t { kAuto = 0, kKeysAndValues = 1, kQueries = 2 };

// How dilated attention gives heads their offsets, s: head h of Hk takes the tokens with
// (t mod w) mod r = s. Modulo: s = h mod r (the paper). Block: s = h * r / Hk.
enum class HeadOffset : uint8_t { kModulo = 0, kBlock = 1 };

// Which keys a query sees. Packed sequences exclude dilation and blocks; with both of these a query
// sees what its pairs select where the block mask allows it.
struct Mask {
  bool causal = false;
  int64_t left = -1;   // window: keys at most so many tokens before the query; -1: all
  int64_t right = -1;  // and after it
  // Packed sequences: 0, end of the first, end of the second, ..., n. A query sees its own
  // sequence.
  std::vector<int64_t> cu_seqlens;
  // Of the keys, where they are others; as many. Empty: the same.
  std::vector<int64_t> cu_seqlens_k;
  // Dilated (LongNet): pairs (w, r). A key that two pairs select counts twice.
  std::vector<int64_t> segment_lengths;
  std::vector<int64_t> dilation_rates;
  HeadOffset head_offset = HeadOffset::kModulo;
  bool split_heads = false;  // each pair has heads of its own, instead of every pair every head
  // Blocks of block x block positions; blocks[(head * rows + i) * rows + j] != 0: seen. rows is
  // ceil(n / block); block_heads is 1 (all heads the same) or the number of KV heads.
  int64_t block = 0;
  int64_t block_heads = 1;
  std::vector<uint8_t> blocks;

  bool depends_on_head() const { return !dilation_rates.empty() || (block > 0 && block_heads > 1); }
};

// Softcap and ALiBi: see KernelTile. slopes: of each query head, or of each entry of the batch and
// query head; empty: none.
Status check_score_changes(double softcap, const std::vector<float>& slopes, int64_t batch,
                           int64_t heads);
// Of the scores: `scale`, or where that is 0 head_dim ^ -0.5.
double softmax_scale(double scale, int64_t head_dim);
inline constexpr int64_t kMostTokens = int64_t{1} << 30;  // of a sequence

struct AttentionSpec {
  int64_t batch = 1;
  int64_t length = 0;    // tokens of the whole sequence, >= 1; of the queries, if key_length is set
  int64_t heads = 1;     // of the queries
  int64_t kv_heads = 1;  // divides heads
  int64_t head_dim = 0;  // elements, 1 to 256
  DType dtype = DType::kFloat32;  // float32, bfloat16 or float16
  // What keys and values travel as: dtype, bfloat16 for float32, or int8 (see wire.h).
  DType kv_wire = DType::kFloat32;
  Rank ranks = 1;
  Rank ulysses = 1;  // ranks that exchange heads for tokens; divides `ranks`. The others form rings
  Layout layout = Layout::kContiguous;
  // Of packed sequences: the layout spreads each by itself, one after another, not their whole.
  bool layout_per_sequence = false;
  Rotate rotate_forward = Rotate::kAuto;
  Rotate rotate_backward = Rotate::kAuto;
  // At most the bytes of so many tokens, with all their heads, in a message (see parts.h); 0: of a
  // quarter of a shard, at least 192 tokens.
  int64_t chunk_tokens = 0;
  bool gather_first = false;  // receive everything before computing (all-gather), not in two slots
  double scale = 0;           // of the scores; 0: head_dim ^ -0.5
  double softcap = 0;         // scores become softcap * tanh(score / softcap); 0: they stay
  // ALiBi: of each query head, or of each entry of the batch and query head; empty: none. -slope *
  // |places between query and key| is added to a score, counted among the keys as for the mask.
  std::vector<float> alibi_slopes;
  // Keys of the whole sequence; 0: as many as queries. Where they are not, causal and window are
  // aligned at the end: the last query stands at the last key (of its packed sequence), so that new
  // queries see a prefix and themselves. Each side is spread by the layout.
  int64_t key_length = 0;
  Mask mask;

  int64_t keys() const { return key_length == 0 ? length : key_length; }
  Rank rings() const { return ranks / ulysses; }
  bool changes_scores() const { return softcap != 0 || !alibi_slopes.empty(); }
  double softmax_scale() const { return attention::softmax_scale(scale, head_dim); }
};

// Says what is wrong with it, if anything.
Status check(const AttentionSpec& spec);
// FNV-1a over everything above: ranks with equal hashes have the same plan.
uint64_t hash_of(const AttentionSpec& spec);

// The tokens of a rank, in the order in which its tensors have them.
std::vector<Run> tokens_of(Layout layout, int64_t length, Rank rank, Rank ranks);
int64_t token_count(Layout layout, int64_t length, Rank rank, Rank ranks);
std::vector<Run> tokens_of(const AttentionSpec& spec, Rank rank);
int64_t token_count(const AttentionSpec& spec, Rank rank);
// Of the keys.
std::vector<Run> key_tokens_of(const AttentionSpec& spec, Rank rank);
int64_t key_count(const AttentionSpec& spec, Rank rank);

// Part of a mask: every query of `q` sees the keys k of `k` with low <= k - (q + shift) <= high, on
// the KV heads [head_begin, head_end) in steps. A mask is a list of these; overlaps count twice.
struct Component {
  Run q;
  Run k;
  int64_t head_begin = 0;
  int64_t head_end = 0;
  int64_t head_step = 1;
  int64_t shift = 0;  // where the first query stands among the keys
};
struct Band {
  int64_t low;
  int64_t high;
};
inline constexpr int64_t kUnlimited = int64_t{1} << 60;

Band band_of(const Mask& mask);
std::vector<Component> components_of(const AttentionSpec& spec);

}  // namespace rueda::attention

#include <cmath>
#include <limits>
#include <string>

#include "attention/decode_shares.h"
#include "attention/hash.h"
#include "attention/spec.h"

namespace rueda::attention {
Status check(const DecodeSpec& s) {
  const auto wrong = [](const std::string& what) {
    return invalid_argument("decode attention: " + what);
  };
  if (s.batch < 0 || s.queries < 1 || s.heads < 1 || s.kv_heads < 1 || s.batch > kMostTokens ||
      s.queries > kMostTokens || s.heads > kMostTokens)
    return wrong("batch, queries, heads or kv_heads is out of range");
  if (s.head_dim < 1 || s.head_dim > 256)
    return wrong("head_dim is " + std::to_string(s.head_dim) + ", expected 1 to 256");
  if (s.heads % s.kv_heads != 0)
    return wrong(std::to_string(s.heads) + " heads are no multiple of " +
                 std::to_string(s.kv_heads) + " key/value heads");
  if (s.dtype != DType::kFloat32 && s.dtype != DType::kBFloat16 && s.dtype != DType::kFloat16)
    return wrong("dtype must be float32, bfloat16 or float16");
  if (s.left < -1 || s.global_tokens < 0)
    return wrong("the window or global_tokens is negative (-1 is no window)");
  if (s.global_tokens > 0 && s.left < 0)
    return wrong("global_tokens says what is seen beyond a window; there is none");
  if (!std::isfinite(s.scale)) return wrong("the scale is not finite");
  RUEDA_RETURN_IF_ERROR(check_score_changes(s.softcap, s.alibi_slopes, s.batch, s.heads));
  if (!s.sinks.empty() && static_cast<int64_t>(s.sinks.size()) != s.heads)
    return wrong("there are " + std::to_string(s.sinks.size()) +
                 " sinks, expected one for each of " + std::to_string(s.heads) + " heads");
  if (static_cast<int64_t>(s.lengths.size()) != s.batch)
    return wrong("there are " + std::to_string(s.lengths.size()) + " lengths for " +
                 std::to_string(s.batch) + " sequences");
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t length = s.lengths[index(b)];
    if (length != 0 && (length < s.queries || length > kMostTokens))
      return wrong("the length of sequence " + std::to_string(b) + " is " + std::to_string(length) +
                   ": it counts the " + std::to_string(s.queries) +
                   " new tokens of the queries, or is 0 where there is no sequence");
  }
  return {};
}

Status check_own(const DecodeSpec& s, bool on_device) {
  const auto wrong = [](const std::string& what) {
    return invalid_argument("decode attention: " + what);
  };
  const int64_t expected = s.own ? split_rows(s.batch, s.rank, s.ranks) : s.batch;
  if (s.sequences != expected)
    return wrong(
        "q has " + std::to_string(s.sequences) + " sequences, expected " +
        std::to_string(expected) +
        (s.own ? ": rank " + std::to_string(s.rank) + "'s share of " + std::to_string(s.batch)
               : " as there are lengths"));
  if (s.blocks < 0 || s.block_tokens < 1 || s.blocks > kMostTokens ||
      s.block_tokens > kMostTokens ||
      s.blocks * s.block_tokens > std::numeric_limits<int32_t>::max())
    return wrong("a cache of " + std::to_string(s.blocks) + " blocks of " +
                 std::to_string(s.block_tokens) + " tokens is not possible: 2^31 - 1 at most");
  const bool is_elsewhere = on_device && s.block_table.empty() && s.table_blocks > 0;
  const bool is_paged = is_elsewhere || !s.block_table.empty();
  if (is_paged ? !is_elsewhere && std::ssize(s.block_table) != s.batch * s.table_blocks
               : s.blocks < s.batch)
    return wrong("the cache or the block table is of other than " + std::to_string(s.batch) +
                 " sequences");
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t needed = here_of(s, s.lengths[index(b)]);
    const int64_t room = is_paged ? s.table_blocks * s.block_tokens : s.block_tokens;
    if (needed > room)
      return wrong("sequence " + std::to_string(b) + " has " + std::to_string(needed) +
                   " tokens on this rank, its cache has room for " + std::to_string(room));
    if (s.block_table.empty()) continue;
    const int64_t used = (needed + s.block_tokens - 1) / s.block_tokens;
    for (int64_t i = 0; i < used; ++i) {
      const int32_t block = s.block_table[index(b * s.table_blocks + i)];
      if (block < 0 || block >= s.blocks)
        return wrong("the block table names block " + std::to_string(block) + " for sequence " +
                     std::to_string(b) + ", of " + std::to_string(s.blocks));
    }
  }
  return {};
}

uint64_t hash_of(const DecodeSpec& s) {
  Fnv hash;
  for (const int64_t x :
       {s.batch, s.queries, s.heads, s.kv_heads, s.head_dim, int64_t(s.dtype), int64_t(s.ranks),
        int64_t(s.own), int64_t(s.causal), s.left, s.global_tokens}) {
    hash.number(x);
  }
  const double scale = softmax_scale(s.scale, s.head_dim);
  hash.bytes(&scale, sizeof scale);
  hash.bytes(&s.softcap, sizeof s.softcap);
  hash.list(s.alibi_slopes);
  hash.list(s.lengths);
  hash.list(s.sinks);
  return hash.value;
}

}  // namespace rueda::attention

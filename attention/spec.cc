#include "attention/spec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/hash.h"

namespace rueda::attention {
namespace {

Status check_rises(const std::vector<int64_t>& ends, const char* side, int64_t tokens) {
  bool rising = ends.size() >= 2 && ends.front() == 0 && ends.back() == tokens;
  for (size_t i = 1; i < ends.size(); ++i) rising = rising && ends[i] >= ends[i - 1];
  if (rising) return {};
  return invalid_argument(std::string("attention: cu_seqlens") + side +
                          " must rise from 0 to the number of tokens, " + std::to_string(tokens));
}

Status check_mask(const AttentionSpec& spec) {
  const Mask& mask = spec.mask;
  if (!mask.cu_seqlens.empty() && (!mask.segment_lengths.empty() || mask.block > 0)) {
    return invalid_argument(
        "attention: packed sequences cannot be combined with dilation or a block mask");
  }
  if (spec.key_length < 0) return invalid_argument("attention: key_length is negative");
  if (spec.keys() != spec.length && (!mask.segment_lengths.empty() || mask.block > 0)) {
    return invalid_argument("attention: " + std::to_string(spec.length) + " queries and " +
                            std::to_string(spec.keys()) +
                            " keys: dilation and block masks need as many keys as queries");
  }
  if (spec.keys() != spec.length && !mask.cu_seqlens.empty() && mask.cu_seqlens_k.empty())
    return invalid_argument("attention: packed sequences of " + std::to_string(spec.keys()) +
                            " keys need cu_seqlens_k");
  if (spec.layout_per_sequence && mask.cu_seqlens.empty())
    return invalid_argument("attention: a layout of each packed sequence needs cu_seqlens");
  if (!mask.cu_seqlens.empty())
    RUEDA_RETURN_IF_ERROR(check_rises(mask.cu_seqlens, "", spec.length));
  if (!mask.cu_seqlens_k.empty()) {
    RUEDA_RETURN_IF_ERROR(check_rises(mask.cu_seqlens_k, "_k", spec.keys()));
    if (mask.cu_seqlens_k.size() != mask.cu_seqlens.size()) {
      return invalid_argument("attention: cu_seqlens_k has " +
                              std::to_string(mask.cu_seqlens_k.size()) + " entries, cu_seqlens " +
                              std::to_string(mask.cu_seqlens.size()) +
                              ": each sequence needs its queries and its keys");
    }
  }
  if (mask.segment_lengths.size() != mask.dilation_rates.size())
    return invalid_argument("attention: segment_lengths and dilation_rates differ in length");
  for (size_t i = 0; i < mask.segment_lengths.size(); ++i) {
    if (mask.segment_lengths[i] < 1 || mask.dilation_rates[i] < 1)
      return invalid_argument("attention: segment lengths and dilation rates must be positive");
    if (mask.dilation_rates[i] > kMostTokens)
      return invalid_argument("attention: a dilation rate of more than 2^30");
  }
  if (mask.split_heads && static_cast<int64_t>(mask.segment_lengths.size()) > spec.kv_heads) {
    return invalid_argument(
        "attention: head_groups='split' needs a KV head for each segment length");
  }
  if (mask.block < 0) return invalid_argument("attention: the block size must be positive");
  if (mask.block > 0) {
    const int64_t rows = ceil_div(spec.length, mask.block);
    if (mask.block_heads != 1 && mask.block_heads != spec.kv_heads)
      return invalid_argument("attention: a block mask is for one head or for each KV head");
    if (static_cast<int64_t>(mask.blocks.size()) != mask.block_heads * rows * rows) {
      return invalid_argument("attention: the block mask needs " + std::to_string(rows) + " x " +
                              std::to_string(rows) + " blocks for " + std::to_string(spec.length) +
                              " tokens in blocks of " + std::to_string(mask.block));
    }
  }
  return {};
}

void dilated(const AttentionSpec& spec, std::vector<Component>* result) {
  const Mask& mask = spec.mask;
  const int64_t n = spec.length;
  const auto pairs = static_cast<int64_t>(mask.segment_lengths.size());
  for (int64_t p = 0; p < pairs; ++p) {
    // A longer segment than the sequence is the whole.
    const int64_t w = std::min(n, mask.segment_lengths[static_cast<size_t>(p)]);
    const int64_t r = mask.dilation_rates[static_cast<size_t>(p)];
    const int64_t first = mask.split_heads ? split_begin(spec.kv_heads, static_cast<Rank>(p),
                                                         static_cast<Rank>(pairs))
                                           : 0;
    const int64_t end = mask.split_heads ? first + split_rows(spec.kv_heads, static_cast<Rank>(p),
                                                              static_cast<Rank>(pairs))
                                         : spec.kv_heads;
    const int64_t heads = end - first;
    for (int64_t offset = 0; offset < r && offset < w; ++offset) {
      Component part;
      if (mask.head_offset == HeadOffset::kModulo) {
        part.head_begin = first + offset;
        part.head_end = end;
        part.head_step = r;
      } else {  // offset = h * r / heads
        part.head_begin = first + ceil_div(offset * heads, r);
        part.head_end = first + ceil_div((offset + 1) * heads, r);
      }
      if (part.head_begin >= part.head_end) continue;
      for (int64_t start = 0; start + offset < n; start += w) {
        const int64_t stop = std::min(start + w, n);
        part.q = {start + offset, ceil_div(stop - start - offset, r), r};
        if (part.q.count <= 0) continue;
        part.k = part.q;
        result->push_back(part);
      }
    }
  }
}

// What the blocks of one head of the mask leave of a component.
void cut_to_blocks(const Mask& mask, int64_t length, int64_t mask_head, const Component& whole,
                   std::vector<Component>* result) {
  const int64_t rows = ceil_div(length, mask.block);
  const auto seen = [&](int64_t i, int64_t j) {
    return mask.blocks[static_cast<size_t>((mask_head * rows + i) * rows + j)] != 0;
  };
  const int64_t last_j = whole.k.last() / mask.block;
  for (int64_t i = whole.q.begin / mask.block; i <= whole.q.last() / mask.block; ++i) {
    Component part = whole;
    part.q = clip(whole.q, i * mask.block, (i + 1) * mask.block - 1);
    if (part.q.count == 0) continue;
    for (int64_t j = whole.k.begin / mask.block; j <= last_j;) {
      int64_t end = j;
      while (end <= last_j && seen(i, end)) ++end;
      if (end > j) {
        part.k = clip(whole.k, j * mask.block, end * mask.block - 1);
        if (part.k.count > 0) result->push_back(part);
      }
      j = end + 1;
    }
  }
}

void blocks(const AttentionSpec& spec, std::vector<Component>* result) {
  const Mask& mask = spec.mask;
  std::vector<Component> wholes;
  if (mask.segment_lengths.empty()) {
    const Run all{0, spec.length, 1};
    wholes.push_back({all, all, 0, spec.kv_heads, 1});
  } else {
    dilated(spec, &wholes);
  }
  for (const Component& whole : wholes) {
    if (mask.block_heads == 1) {
      cut_to_blocks(mask, spec.length, 0, whole, result);
      continue;
    }
    for (int64_t head = whole.head_begin; head < whole.head_end; head += whole.head_step)
      cut_to_blocks(mask, spec.length, head, {whole.q, whole.k, head, head + 1, 1}, result);
  }
}

}  // namespace

double softmax_scale(double scale, int64_t head_dim) {
  return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

Status check_score_changes(double softcap, const std::vector<float>& slopes, int64_t batch,
                           int64_t heads) {
  if (!std::isfinite(softcap) || softcap < 0)
    return invalid_argument("attention: softcap is " + std::to_string(softcap) +
                            ", expected a positive number, or 0 for none");
  const auto count = static_cast<int64_t>(slopes.size());
  if (count != 0 && count != heads && count != batch * heads)
    return invalid_argument("attention: there are " + std::to_string(count) +
                            " ALiBi slopes, expected one for each of " + std::to_string(heads) +
                            " query heads, or for each entry of the batch and head");
  if (!std::all_of(slopes.begin(), slopes.end(), [](float x) { return std::isfinite(x); }))
    return invalid_argument("attention: an ALiBi slope is not finite");
  return {};
}

Status check(const AttentionSpec& spec) {
  if (spec.length < 1 || spec.batch < 1)
    return invalid_argument("attention: an empty sequence or batch");
  if (std::max(spec.length, spec.keys()) > kMostTokens)
    return invalid_argument("attention: more than 2^30 tokens");
  if (spec.head_dim < 1 || spec.head_dim > 256) {
    return invalid_argument("attention: head_dim is " + std::to_string(spec.head_dim) +
                            ", 1 to 256 are supported");
  }
  if (spec.kv_heads < 1 || spec.heads < 1 || spec.heads % spec.kv_heads != 0) {
    return invalid_argument("attention: " + std::to_string(spec.heads) +
                            " query heads are no multiple of " + std::to_string(spec.kv_heads) +
                            " key/value heads");
  }
  if (spec.dtype != DType::kFloat32 && spec.dtype != DType::kBFloat16 &&
      spec.dtype != DType::kFloat16) {
    return invalid_argument(std::string("attention: ") + name_of(spec.dtype) +
                            " is not supported; use float32, bfloat16 or float16");
  }
  if (spec.kv_wire != spec.dtype &&
      !(spec.dtype == DType::kFloat32 && spec.kv_wire == DType::kBFloat16) &&
      spec.kv_wire != DType::kInt8) {
    return invalid_argument(std::string("attention: ") + name_of(spec.dtype) +
                            " cannot travel as " + name_of(spec.kv_wire));
  }
  if (spec.ranks < 1 || spec.ulysses < 1 || spec.ranks % spec.ulysses != 0) {
    return invalid_argument("attention: ulysses_degree " + std::to_string(spec.ulysses) +
                            " does not divide " + std::to_string(spec.ranks) + " ranks");
  }
  if (spec.chunk_tokens < 0) return invalid_argument("attention: chunk_tokens is negative");
  if (!std::isfinite(spec.scale)) return invalid_argument("attention: the scale is not finite");
  RUEDA_RETURN_IF_ERROR(
      check_score_changes(spec.softcap, spec.alibi_slopes, spec.batch, spec.heads));
  return check_mask(spec);
}

uint64_t hash_of(const AttentionSpec& s) {
  Fnv hash;
  for (const int64_t x : {s.batch,
                          s.length,
                          s.heads,
                          s.kv_heads,
                          s.head_dim,
                          int64_t(s.dtype),
                          int64_t(s.kv_wire),
                          int64_t(s.ranks),
                          int64_t(s.ulysses),
                          int64_t(s.layout),
                          int64_t(s.rotate_forward),
                          int64_t(s.rotate_backward),
                          s.chunk_tokens,
                          int64_t(s.gather_first),
                          int64_t(s.mask.causal),
                          s.mask.left,
                          s.mask.right,
                          int64_t(s.mask.head_offset),
                          int64_t(s.mask.split_heads),
                          int64_t(s.layout_per_sequence),
                          s.keys(),
                          s.mask.block,
                          s.mask.block_heads}) {
    hash.number(x);
  }
  const double scale = s.softmax_scale();
  hash.bytes(&scale, sizeof scale);
  hash.bytes(&s.softcap, sizeof s.softcap);
  hash.list(s.alibi_slopes);
  hash.list(s.mask.cu_seqlens);
  hash.list(s.mask.cu_seqlens_k);
  hash.list(s.mask.segment_lengths);
  hash.list(s.mask.dilation_rates);
  hash.list(s.mask.blocks);
  return hash.value;
}

std::vector<Run> tokens_of(Layout layout, int64_t length, Rank rank, Rank ranks) {
  std::vector<Run> runs;
  const auto part = [&](Rank index, Rank parts) {
    append(&runs, {split_begin(length, index, parts), split_rows(length, index, parts), 1});
  };
  switch (layout) {
    case Layout::kContiguous: part(rank, ranks); break;
    case Layout::kZigzag:
      part(rank, 2 * ranks);
      part(2 * ranks - 1 - rank, 2 * ranks);
      break;
    case Layout::kStriped:
      if (rank < length) append(&runs, {rank, ceil_div(length - rank, ranks), ranks});
      break;
  }
  return runs;
}

int64_t token_count(Layout layout, int64_t length, Rank rank, Rank ranks) {
  return total(tokens_of(layout, length, rank, ranks));
}

namespace {

std::vector<Run> tokens_of_side(const AttentionSpec& spec, Rank rank, int64_t length,
                                const std::vector<int64_t>& ends) {
  if (!spec.layout_per_sequence) return tokens_of(spec.layout, length, rank, spec.ranks);
  std::vector<Run> runs;
  for (size_t i = 1; i < ends.size(); ++i) {
    for (Run run : tokens_of(spec.layout, ends[i] - ends[i - 1], rank, spec.ranks)) {
      run.begin += ends[i - 1];
      append(&runs, run);
    }
  }
  return runs;
}

const std::vector<int64_t>& key_ends(const Mask& mask) {
  return mask.cu_seqlens_k.empty() ? mask.cu_seqlens : mask.cu_seqlens_k;
}

}  // namespace

std::vector<Run> tokens_of(const AttentionSpec& spec, Rank rank) {
  return tokens_of_side(spec, rank, spec.length, spec.mask.cu_seqlens);
}
std::vector<Run> key_tokens_of(const AttentionSpec& spec, Rank rank) {
  return tokens_of_side(spec, rank, spec.keys(), key_ends(spec.mask));
}

int64_t token_count(const AttentionSpec& spec, Rank rank) { return total(tokens_of(spec, rank)); }
int64_t key_count(const AttentionSpec& spec, Rank rank) { return total(key_tokens_of(spec, rank)); }

Band band_of(const Mask& mask) {
  // Also what is called unlimited by a large number.
  const int64_t low = mask.left < 0 ? -kUnlimited : -std::min(mask.left, kUnlimited);
  const int64_t high = mask.right < 0 ? kUnlimited : std::min(mask.right, kUnlimited);
  return {low, mask.causal ? std::min<int64_t>(high, 0) : high};
}

std::vector<Component> components_of(const AttentionSpec& spec) {
  std::vector<Component> result;
  if (spec.mask.block > 0) {
    blocks(spec, &result);
  } else if (!spec.mask.segment_lengths.empty()) {
    dilated(spec, &result);
  } else {
    Component part;
    part.head_end = spec.kv_heads;
    std::vector<int64_t> ends = spec.mask.cu_seqlens, k_ends = key_ends(spec.mask);
    if (ends.empty()) ends = {0, spec.length}, k_ends = {0, spec.keys()};
    for (size_t i = 1; i < ends.size(); ++i) {
      if (ends[i] == ends[i - 1] || k_ends[i] == k_ends[i - 1]) continue;
      part.q = {ends[i - 1], ends[i] - ends[i - 1], 1};
      part.k = {k_ends[i - 1], k_ends[i] - k_ends[i - 1], 1};
      part.shift = k_ends[i] - ends[i];  // the last query stands at the last key
      result.push_back(part);
    }
  }
  return result;
}

}  // namespace rueda::attention

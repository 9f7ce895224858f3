// Forward: keys in large blocks that stay in the second-level cache, queries in tiles, keys of the
// block in parts of kKeys.
#if defined(RUEDA_ATTENTION_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_ATTENTION_CPU_FORWARD_INL_H_
#undef RUEDA_ATTENTION_CPU_FORWARD_INL_H_
#else
#define RUEDA_ATTENTION_CPU_FORWARD_INL_H_
#endif

#include "attention/cpu_blocks-inl.h"
#include "attention/cpu_scores-inl.h"
#include "hwy/highway.h"

RUEDA_ATTENTION_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

constexpr int64_t kTileQueries = 48;
constexpr int64_t kBlockKeys = 4 * kKeys;

// The largest of s[begin, end), whole vectors; what lies outside [from, to) becomes -infinity.
HWY_INLINE float largest_of(float* s, int64_t begin, int64_t end, int64_t from, int64_t to) {
  const F d;
  if (from > begin || to < end) {
    const V minus_infinity = hn::Neg(hn::Inf(d));
    for (int64_t j = begin; j < end; j += kLanes) {
      if (from <= j && j + kLanes <= to) continue;
      store(hn::IfThenElse(lanes_in(j, from, to), load(s + j), minus_infinity), s + j);
    }
  }
  V most0 = hn::Set(d, -hwy::HighestValue<float>()), most1 = most0;
  int64_t j = begin;
  for (; j + 2 * kLanes <= end; j += 2 * kLanes) {
    most0 = hn::Max(most0, load(s + j));
    most1 = hn::Max(most1, load(s + j + kLanes));
  }
  if (j < end) most0 = hn::Max(most0, load(s + j));
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(most0, most1)));
}

template <class P>
HWY_INLINE V weight_of(const float* s, V factor, V shift) {
  return exp_of(P::kScalesRows ? hn::Sub(load(s), shift) : hn::MulSub(load(s), factor, shift));
}

// The weights of s[begin, end), exp(scale * s - m), to `to`, which begins at s[0]. Returns the sum.
template <class P>
HWY_INLINE float exp_row(const float* s, typename P::Word* to, int64_t begin, int64_t end,
                         float scale, float m) {
  const F d;
  const V shift = hn::Set(d, m), factor = hn::Set(d, scale);
  V sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  int64_t j = begin;
  for (; j + 2 * kLanes <= end; j += 2 * kLanes) {
    const V p0 = weight_of<P>(s + j, factor, shift);
    const V p1 = weight_of<P>(s + j + kLanes, factor, shift);
    P::put(p0, p1, to + j / P::kElements);
    sum0 = hn::Add(sum0, p0);
    sum1 = hn::Add(sum1, p1);
  }
  if constexpr (P::kElements == 1) {  // else whole words of pairs
    if (j < end) {
      const V p = weight_of<P>(s + j, factor, shift);
      store(p, to + j);
      sum0 = hn::Add(sum0, p);
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

// Scores of kRows queries at keys [begin, end) of a part become weights, exp(scale * score - m), in
// `to`; those that a query does not see zero. Row i of s is kKeys long and sees
// [seen[i].from, seen[i].to) - part. Each step is done for all rows before the next: what a row
// waits for is hidden behind the others.
template <class P>
HWY_INLINE void softmax_rows(float* s, typename P::Word* to, int64_t begin, int64_t end,
                             const Seen* seen, int64_t part, float scale, float* m, float* l,
                             float* acc, int64_t acc_stride, int64_t padded) {
  const F d;
  float largest[kRows];
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t from = seen[i].from - part, until = min(seen[i].to - part, end);
    largest[i] = from < until ? scale * largest_of(s + i * kKeys, begin, end, from, until) : 0;
  }
  for (int64_t i = 0; i < kRows; ++i) {
    if (seen[i].from - part >= min(seen[i].to - part, end)) continue;
    const float before = m[i];
    if (!(largest[i] > before + P::kSlack)) continue;
    const V shrink = exp_of(hn::Set(d, before - largest[i]));
    l[i] *= hn::GetLane(shrink);
    m[i] = largest[i];
    float* a = acc + i * acc_stride;
    for (int64_t x = 0; x < padded; x += kLanes) store(hn::Mul(load(a + x), shrink), a + x);
  }
  for (int64_t i = 0; i < kRows; ++i) {
    typename P::Word* row = to + i * kKeys / P::kElements;
    if (seen[i].from - part < min(seen[i].to - part, end)) {
      l[i] += exp_row<P>(s + i * kKeys, row, begin, end, scale, m[i]);
    } else {
      for (int64_t j = begin / P::kElements; j < end / P::kElements; ++j) row[j] = 0;
    }
  }
}

HWY_INLINE bool follow_each_other(const int32_t* rows, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    if (rows[i] != rows[0] + i) return false;
  }
  return true;
}

template <class P>
HWY_INLINE void forward_of(const KernelTile& tile, float* scratch) {
  using Word = typename P::Word;
  constexpr int64_t kElements = P::kElements;
  const int64_t width = tile.head_dim, padded = round_up(width, kLanes);
  const int64_t depth = words_of<P>(width), words = padded / kElements;  // of a row
  auto* panels = reinterpret_cast<Word*>(scratch);
  Word* values = panels + kBlockKeys * words;
  Word* queries = values + kBlockKeys * words;
  Word* buffer = queries + kTileQueries * words;
  auto* acc = reinterpret_cast<float*>(buffer + 4 * words);
  float* scores = acc + kTileQueries * padded;
  // Those of one element to a word take the places of scores.
  auto* weights = reinterpret_cast<Word*>(kElements == 1 ? scores : scores + kTileQueries * kKeys);
  const bool changes = changes_scores(tile);
  // What is left of the scale for the softmax.
  const float size = tile.scale < 0 ? -tile.scale : tile.scale;
  const float scale = P::kScalesRows || changes ? 1.0f : size;
  Seen seen[kTileQueries];
  float m[kTileQueries], l[kTileQueries];
  for (int64_t block = 0; block < tile.keys; block += kBlockKeys) {
    const int64_t block_keys = min(kBlockKeys, tile.keys - block);
    bool packed = false;
    for (int64_t start = 0; start < tile.queries; start += kTileQueries) {
      const int64_t rows = min(kTileQueries, tile.queries - start);
      const Seen all = seen_in_block(tile, start, rows, kTileQueries, block, block_keys, seen);
      if (all.from >= all.to) continue;
      if (!packed) {
        pack_keys<P>(tile, tile.k, block, block_keys, kPanel, padded, 1.0f, nullptr, panels,
                     buffer);
        pack_keys<P>(tile, tile.v, block, block_keys, kPanel, padded, 1.0f, values, nullptr,
                     buffer);
        packed = true;
      }
      // Sums of rows that lie evenly are added to where they are.
      const bool in_place =
          width == padded && rows % kRows == 0 && follow_each_other(tile.q_rows + start, rows);
      for (int64_t h = 0; h < tile.head_count; ++h) {
        const QueryHead& head = tile.heads[h];
        float* sums = in_place ? head.acc + tile.q_rows[start] * tile.acc_stride : acc;
        const int64_t sums_stride = in_place ? tile.acc_stride : padded;
        for (int64_t i = 0; i < round_up(rows, kRows); ++i) {
          Word* q = queries + i * words;
          float* a = acc + i * padded;
          if (i >= rows) {
            for (int64_t x = 0; x < words; ++x) q[x] = 0;
            for (int64_t x = 0; x < padded; ++x) a[x] = 0.0f;
            continue;
          }
          const int64_t row = tile.q_rows[start + i];
          P::take_row(head.q, row, width, padded, tile.scale, q);
          if (!in_place) widen_row(rows_of(head.acc, tile.acc_stride), row, width, padded, 1.0f, a);
          m[i] = head.m[row * tile.ml_stride];
          l[i] = head.l[row * tile.ml_stride];
        }
        const NextQueries next = after(tile, start, h, kTileQueries);
        const int64_t first_part = all.from / kKeys * kKeys;
        for (int64_t part = first_part; part < all.to; part += kKeys) {
          const int64_t part_keys = min(kKeys, block_keys - part);
          // What each group of rows needs of this part.
          Seen group[kTileQueries / kRows];
          for (int64_t g = 0; g * kRows < rows; ++g)
            group[g] = seen_in_part(seen + g * kRows, kRows, part, part_keys);
          const int64_t groups = (rows + kRows - 1) / kRows;
          for (int64_t some = 0; some < groups; some += P::kGroups) {
            const int64_t until = min(some + P::kGroups, groups);
            for (int64_t key = 0; key < part_keys; key += kPanel) {
              const Word* panel = panels + (part + key) * depth;
              for (int64_t g = some; g < until; ++g) {
                if (group[g].from >= key + kPanel || group[g].to <= key) continue;
                P::template multiply<kVecs, false>(queries + g * kRows * words, words, 1, panel,
                                                   kPanel, depth, scores + g * kRows * kKeys + key,
                                                   kKeys);
              }
            }
            for (int64_t g = some; g < until; ++g) {
              // A few rows at a time, meanwhile.
              for (int64_t i = next.start + g * kRows;
                   part == first_part && i < min(next.start + (g + 1) * kRows, tile.queries); ++i) {
                fetch_row(tile.heads[next.head].q, tile.q_rows[i], width);
                fetch_row(rows_of(tile.heads[next.head].acc, tile.acc_stride), tile.q_rows[i],
                          width);
              }
              if (group[g].from >= group[g].to) continue;
              const int64_t begin = group[g].from / (kElements * kLanes) * (kElements * kLanes);
              const int64_t end = round_up(group[g].to, kElements * kLanes);
              float* s = scores + g * kRows * kKeys;
              for (int64_t i = g * kRows; changes && i < min((g + 1) * kRows, rows); ++i)
                change_row(tile, h, start + i, block + part, begin, end,
                           P::kScalesRows ? 1.0f : size, scores + i * kKeys, nullptr);
              Word* w = weights + g * kRows * kKeys / kElements;
              softmax_rows<P>(s, w, begin, end, seen + g * kRows, part, scale, m + g * kRows,
                              l + g * kRows, sums + g * kRows * sums_stride, sums_stride, padded);
              // Of pairs, weights beside those that are seen are zero.
              const int64_t from = kElements == 1 ? group[g].from : begin;
              const int64_t to = kElements == 1 ? group[g].to : end;
              multiply_wide<P, true>(w + from / kElements, kKeys / kElements, 1,
                                     values + (part + from) / kElements * padded, padded,
                                     (to - from) / kElements, sums + g * kRows * sums_stride,
                                     sums_stride, padded / kLanes);
            }
          }
        }
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t row = tile.q_rows[start + i];
          if (!in_place) {
            memcpy(head.acc + row * tile.acc_stride, acc + i * padded,
                   static_cast<size_t>(width) * sizeof(float));
          }
          head.m[row * tile.ml_stride] = m[i];
          head.l[row * tile.ml_stride] = l[i];
        }
      }
    }
  }
}

}  // namespace rueda::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_ATTENTION_CPU_FORWARD_INL_H_

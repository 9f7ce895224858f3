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

HWY_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

constexpr int64_t kTileQueries = 48;
constexpr int64_t kBlockKeys = 4 * kKeys;
// A row is scaled to a new largest score only when that is so much larger: weights up to exp(8).
constexpr float kSlack = 8;

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

// s[begin, end) becomes exp(s - m). Returns the sum.
HWY_INLINE float exp_row(float* s, int64_t begin, int64_t end, float m) {
  const F d;
  const V shift = hn::Set(d, m);
  V sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  int64_t j = begin;
  for (; j + 2 * kLanes <= end; j += 2 * kLanes) {
    const V p0 = exp_of(hn::Sub(load(s + j), shift));
    const V p1 = exp_of(hn::Sub(load(s + j + kLanes), shift));
    store(p0, s + j);
    store(p1, s + j + kLanes);
    sum0 = hn::Add(sum0, p0);
    sum1 = hn::Add(sum1, p1);
  }
  if (j < end) {
    const V p = exp_of(hn::Sub(load(s + j), shift));
    store(p, s + j);
    sum0 = hn::Add(sum0, p);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

// Scores of kRows queries at keys [begin, end) of a part become exp(score - m); those that a query
// does not see zero. Row i of s is kKeys long and sees [seen[i].from, seen[i].to) - part. Each step
// is done for all rows before the next: what a row waits for is hidden behind the others.
HWY_INLINE void softmax_rows(float* s, int64_t begin, int64_t end, const Seen* seen, int64_t part,
                             float* m, float* l, float* acc, int64_t acc_stride, int64_t padded) {
  const F d;
  float largest[kRows];
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t from = seen[i].from - part, to = min(seen[i].to - part, end);
    largest[i] = from < to ? largest_of(s + i * kKeys, begin, end, from, to) : 0;
  }
  for (int64_t i = 0; i < kRows; ++i) {
    if (seen[i].from - part >= min(seen[i].to - part, end)) continue;
    const float before = m[i];
    if (!(largest[i] > before + kSlack)) continue;
    const V shrink = exp_of(hn::Set(d, before - largest[i]));
    l[i] *= hn::GetLane(shrink);
    m[i] = largest[i];
    float* a = acc + i * acc_stride;
    for (int64_t x = 0; x < padded; x += kLanes) store(hn::Mul(load(a + x), shrink), a + x);
  }
  for (int64_t i = 0; i < kRows; ++i) {
    float* row = s + i * kKeys;
    if (seen[i].from - part < min(seen[i].to - part, end)) {
      l[i] += exp_row(row, begin, end, m[i]);
    } else {
      for (int64_t j = begin; j < end; j += kLanes) store(hn::Zero(d), row + j);
    }
  }
}

HWY_INLINE bool follow_each_other(const int32_t* rows, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    if (rows[i] != rows[0] + i) return false;
  }
  return true;
}

void forward(const KernelTile& tile, float* scratch) {
  const int64_t width = tile.head_dim, padded = round_up(width, kLanes);
  float* panels = scratch;
  float* values = panels + kBlockKeys * padded;
  float* queries = values + kBlockKeys * padded;
  float* acc = queries + kTileQueries * padded;
  float* scores = acc + kTileQueries * padded;
  float* row_buffer = scores + kTileQueries * kKeys;
  const bool changes = changes_scores(tile);
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
        pack_keys(tile, tile.k, block, block_keys, padded, 1.0f, nullptr, panels, row_buffer);
        pack_keys(tile, tile.v, block, block_keys, padded, 1.0f, values, nullptr, nullptr);
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
          float* q = queries + i * padded;
          float* a = acc + i * padded;
          if (i >= rows) {
            for (int64_t x = 0; x < padded; ++x) q[x] = a[x] = 0.0f;
            continue;
          }
          const int64_t row = tile.q_rows[start + i];
          widen_row(head.q, row, width, padded, tile.scale, q);
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
          for (int64_t key = 0; key < part_keys; key += kPanel) {
            const float* panel = panels + (part + key) * width;
            for (int64_t g = 0; g * kRows < rows; ++g) {
              if (group[g].from >= key + kPanel || group[g].to <= key) continue;
              multiply<kVecs, false>(queries + g * kRows * padded, padded, 1, panel, kPanel, width,
                                     scores + g * kRows * kKeys + key, kKeys);
            }
          }
          for (int64_t g = 0; g * kRows < rows; ++g) {
            // A few rows at a time, meanwhile.
            for (int64_t i = next.start + g * kRows;
                 part == first_part && i < min(next.start + (g + 1) * kRows, tile.queries); ++i) {
              fetch_row(tile.heads[next.head].q, tile.q_rows[i], width);
              fetch_row(rows_of(tile.heads[next.head].acc, tile.acc_stride), tile.q_rows[i], width);
            }
            if (group[g].from >= group[g].to) continue;
            const int64_t begin = group[g].from / kLanes * kLanes;
            const int64_t end = round_up(group[g].to, kLanes);
            for (int64_t i = g * kRows; changes && i < min((g + 1) * kRows, rows); ++i)
              change_row(tile, h, start + i, block + part, begin, end, scores + i * kKeys, nullptr);
            softmax_rows(scores + g * kRows * kKeys, begin, end, seen + g * kRows, part,
                         m + g * kRows, l + g * kRows, sums + g * kRows * sums_stride, sums_stride,
                         padded);
            multiply_wide<true>(scores + g * kRows * kKeys + group[g].from, kKeys, 1,
                                values + (part + group[g].from) * padded, padded,
                                group[g].to - group[g].from, sums + g * kRows * sums_stride,
                                sums_stride, padded / kLanes);
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

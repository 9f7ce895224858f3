// Forward: keys in large blocks that stay in the second-level cache, queries in tiles, keys of the
// block in parts of kKeys.
#if defined(RUEDA_ATTENTION_CPU_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_ATTENTION_CPU_FORWARD_INL_H_
#undef RUEDA_ATTENTION_CPU_FORWARD_INL_H_
#else
#define RUEDA_ATTENTION_CPU_FORWARD_INL_H_
#endif

#include "attention/cpu_blocks-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

constexpr int64_t kTileQueries = 48;
constexpr int64_t kBlockKeys = 4 * kKeys;

// Scores of one query in s[0, end) become exp(score - m); those outside [from, to) zero.
// s is processed in [begin, end), whole vectors. Scales acc.
HWY_INLINE void softmax_row(float* s, int64_t begin, int64_t end, int64_t from, int64_t to,
                            float* m, float* l, float* acc, int64_t padded) {
  const F d;
  if (from >= to) {
    for (int64_t j = begin; j < end; j += kLanes) store(hn::Zero(d), s + j);
    return;
  }
  const V lowest = hn::Set(d, -hwy::HighestValue<float>());
  const V minus_infinity = hn::Neg(hn::Inf(d));
  V largest0 = lowest, largest1 = lowest;
  if (from > begin || to < end) {
    for (int64_t j = begin; j < end; j += kLanes) {
      if (from <= j && j + kLanes <= to) continue;
      store(hn::IfThenElse(lanes_in(j, from, to), load(s + j), minus_infinity), s + j);
    }
  }
  int64_t j = begin;
  for (; j + 2 * kLanes <= end; j += 2 * kLanes) {
    largest0 = hn::Max(largest0, load(s + j));
    largest1 = hn::Max(largest1, load(s + j + kLanes));
  }
  if (j < end) largest0 = hn::Max(largest0, load(s + j));
  const float largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(largest0, largest1)));
  const float before = *m;
  const float now = largest > before ? largest : before;
  const V shift = hn::Set(d, now);
  V sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  for (j = begin; j + 2 * kLanes <= end; j += 2 * kLanes) {
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
  const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  if (now > before) {
    const V shrink = exp_of(hn::Set(d, before - now));
    *l = *l * hn::GetLane(shrink) + sum;
    *m = now;
    for (int64_t x = 0; x < padded; x += kLanes) store(hn::Mul(load(acc + x), shrink), acc + x);
  } else {
    *l += sum;
  }
}

void forward(const KernelTile& tile, float* scratch) {
  const int64_t width = tile.head_dim, padded = round_up(width, kLanes);
  float* panels = scratch;
  float* values = panels + kBlockKeys * padded;
  float* queries = values + kBlockKeys * padded;
  float* acc = queries + kTileQueries * padded;
  float* scores = acc + kTileQueries * padded;
  float* row_buffer = scores + kTileQueries * kKeys;
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
      for (int64_t h = 0; h < tile.head_count; ++h) {
        const QueryHead& head = tile.heads[h];
        for (int64_t i = 0; i < round_up(rows, kRows); ++i) {
          float* q = queries + i * padded;
          float* a = acc + i * padded;
          if (i >= rows) {
            for (int64_t x = 0; x < padded; ++x) q[x] = a[x] = 0.0f;
            continue;
          }
          const int64_t row = tile.q_rows[start + i];
          widen_row(head.q, row, width, padded, tile.scale, q);
          widen_row({reinterpret_cast<const std::byte*>(head.acc), tile.acc_stride, 7}, row, width,
                    padded, 1.0f, a);
          m[i] = head.m[row * tile.ml_stride];
          l[i] = head.l[row * tile.ml_stride];
        }
        for (int64_t part = all.from / kKeys * kKeys; part < all.to; part += kKeys) {
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
            if (group[g].from >= group[g].to) continue;
            const int64_t begin = group[g].from / kLanes * kLanes;
            const int64_t end = round_up(group[g].to, kLanes);
            for (int64_t i = g * kRows; i < (g + 1) * kRows; ++i) {
              float* s = scores + i * kKeys;
              if (i >= rows) {
                for (int64_t j = begin; j < end; ++j) s[j] = 0.0f;
                continue;
              }
              softmax_row(s, begin, end, seen[i].from - part, min(seen[i].to - part, part_keys),
                          &m[i], &l[i], acc + i * padded, padded);
            }
            multiply_wide<true>(scores + g * kRows * kKeys + group[g].from, kKeys, 1,
                                values + (part + group[g].from) * padded, padded,
                                group[g].to - group[g].from, acc + g * kRows * padded, padded,
                                padded / kLanes);
          }
        }
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t row = tile.q_rows[start + i];
          memcpy(head.acc + row * tile.acc_stride, acc + i * padded,
                 static_cast<size_t>(width) * sizeof(float));
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

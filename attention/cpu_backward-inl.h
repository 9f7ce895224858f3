// Backward: P = exp(S - L), dV += P^T dO, dP = dO V^T, dS = P * (dP - D), dQ += dS K, dK += dS^T Q.
// Needs of the softmax only its result L, so tiles are independent sums.
#if defined(RUEDA_ATTENTION_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_ATTENTION_CPU_BACKWARD_INL_H_
#undef RUEDA_ATTENTION_CPU_BACKWARD_INL_H_
#else
#define RUEDA_ATTENTION_CPU_BACKWARD_INL_H_
#endif

#include "attention/cpu_blocks-inl.h"
#include "attention/cpu_scores-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

constexpr int64_t kBackQueries = 24;
// Whole vectors and whole groups of kRows.
constexpr int64_t kGrain = 48;

// exp(s - lse - low) is exp(s - lse) times this: dout and delta carry it.
HWY_INLINE float fold_of(const QueryHead& head, int64_t at) {
  return head.lse_low == nullptr ? 1.0f : hn::GetLane(exp_of(hn::Set(F(), -head.lse_low[at])));
}

void backward(const KernelTile& tile, float* scratch) {
  const F d;
  const int64_t width = tile.head_dim, padded = round_up(width, kLanes);
  const int64_t vectors = padded / kLanes;
  float* k_panels = scratch;
  float* v_panels = k_panels + kKeys * padded;
  float* k_rows = v_panels + kKeys * padded;
  float* dk = k_rows + kKeys * padded;
  float* dv = dk + kKeys * padded;
  float* queries = dv + kKeys * padded;
  float* douts = queries + kBackQueries * padded;
  float* dq = douts + kBackQueries * padded;
  float* p = dq + kBackQueries * padded;
  float* dp = p + kBackQueries * kKeys;
  float* row_buffer = dp + kBackQueries * kKeys;
  float* slopes = row_buffer + 4 * padded;  // of changed scores
  const bool changes = changes_scores(tile);
  Seen seen[kBackQueries];
  for (int64_t block = 0; block < tile.keys; block += kKeys) {
    const int64_t block_keys = min(kKeys, tile.keys - block);
    bool packed = false;
    for (int64_t start = 0; start < tile.queries; start += kBackQueries) {
      const int64_t rows = min(kBackQueries, tile.queries - start);
      const Seen all = seen_in_block(tile, start, rows, kBackQueries, block, block_keys, seen);
      if (all.from >= all.to) continue;
      if (!packed) {
        pack_keys(tile, tile.k, block, block_keys, padded, 1.0f, nullptr, k_panels, row_buffer);
        pack_keys(tile, tile.v, block, block_keys, padded, 1.0f, nullptr, v_panels, row_buffer);
        pack_keys(tile, tile.k, block, block_keys, padded, tile.scale, k_rows, nullptr, nullptr);
        for (int64_t x = 0; x < 2 * kKeys * padded; x += kLanes) store(hn::Zero(d), dk + x);
        packed = true;
      }
      const int64_t begin = all.from / kGrain * kGrain;
      const int64_t end = round_up(all.to, kGrain);
      for (int64_t h = 0; h < tile.head_count; ++h) {
        const QueryHead& head = tile.heads[h];
        const int64_t groups = (rows + kRows - 1) / kRows;
        for (int64_t i = 0; i < groups * kRows; ++i) {
          float* q = queries + i * padded;
          float* o = douts + i * padded;
          if (i >= rows) {
            for (int64_t x = 0; x < padded; ++x) q[x] = o[x] = 0.0f;
            continue;
          }
          const int64_t row = tile.q_rows[start + i];
          widen_row(head.q, row, width, padded, tile.scale, q);
          widen_row(head.dout, row, width, padded, fold_of(head, row * tile.ml_stride), o);
        }
        const NextQueries next = after(tile, start, h, kBackQueries);
        const int64_t first_key = begin / kPanel * kPanel;
        for (int64_t key = first_key; key < min(end, block_keys); key += kPanel) {
          for (int64_t g = 0; g < groups; ++g) {
            for (int64_t i = next.start + g * kRows;
                 key == first_key && i < min(next.start + (g + 1) * kRows, tile.queries); ++i) {
              fetch_row(tile.heads[next.head].q, tile.q_rows[i], width);
              fetch_row(tile.heads[next.head].dout, tile.q_rows[i], width);
              fetch_row(rows_of(tile.heads[next.head].dq, tile.acc_stride), tile.q_rows[i], width);
            }
            multiply<kVecs, false>(queries + g * kRows * padded, padded, 1, k_panels + key * width,
                                   kPanel, width, p + g * kRows * kKeys + key, kKeys);
          }
          for (int64_t g = 0; g < groups; ++g) {
            multiply<kVecs, false>(douts + g * kRows * padded, padded, 1, v_panels + key * width,
                                   kPanel, width, dp + g * kRows * kKeys + key, kKeys);
          }
        }
        for (int64_t i = 0; i < groups * kRows; ++i) {
          float* s = p + i * kKeys;
          float* t = dp + i * kKeys;
          const bool some = i < rows && seen[i].from < seen[i].to;
          const int64_t row = some ? tile.q_rows[start + i] : 0;
          const V lse = hn::Set(d, some ? head.lse[row * tile.ml_stride] : 0.0f);
          const float fold = some ? fold_of(head, row * tile.ml_stride) : 0.0f;
          const V delta = hn::Set(d, some ? head.delta[row * tile.ml_stride] * fold : 0.0f);
          const int64_t from = some ? seen[i].from : 0, to = some ? seen[i].to : 0;
          if (changes && some) change_row(tile, h, start + i, block, begin, end, s, slopes);
          for (int64_t j = begin; j < end; j += kLanes) {
            if (j >= to || j + kLanes <= from) {
              store(hn::Zero(d), s + j);
              store(hn::Zero(d), t + j);
              continue;
            }
            V x = exp_of(hn::Sub(load(s + j), lse));
            V y = hn::Mul(x, hn::Sub(load(t + j), delta));
            if (j < from || j + kLanes > to) {
              const auto inside = lanes_in(j, from, to);
              x = hn::IfThenElse(inside, x, hn::Zero(d));
              y = hn::IfThenElse(inside, y, hn::Zero(d));
            }
            store(x, s + j);
            store(y, t + j);
          }
          for (int64_t j = begin; changes && some && j < end; j += kLanes)
            store(hn::Mul(load(t + j), load(slopes + j)), t + j);
        }
        for (int64_t key = begin; key < end; key += kRows) {
          multiply_wide<true>(p + key, 1, kKeys, douts, padded, rows, dv + key * padded, padded,
                              vectors);
          multiply_wide<true>(dp + key, 1, kKeys, queries, padded, rows, dk + key * padded, padded,
                              vectors);
        }
        for (int64_t g = 0; g < groups; ++g) {
          multiply_wide<false>(dp + g * kRows * kKeys + all.from, kKeys, 1,
                               k_rows + all.from * padded, padded, all.to - all.from,
                               dq + g * kRows * padded, padded, vectors);
        }
        for (int64_t i = 0; i < rows; ++i) {
          float* to = head.dq + tile.q_rows[start + i] * tile.acc_stride;
          const float* from = dq + i * padded;
          int64_t x = 0;
          for (; x + kLanes <= width; x += kLanes)
            store(hn::Add(load(to + x), load(from + x)), to + x);
          for (; x < width; ++x) to[x] += from[x];
        }
      }
    }
    if (!packed) continue;
    for (int64_t j = 0; j < block_keys; ++j) {
      const int64_t at = tile.k_rows[block + j] * tile.dkv_stride;
      for (int64_t x = 0; x < width; ++x) {
        tile.dk[at + x] += dk[j * padded + x];
        tile.dv[at + x] += dv[j * padded + x];
      }
    }
  }
}

}  // namespace rueda::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_ATTENTION_CPU_BACKWARD_INL_H_

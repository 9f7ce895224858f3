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

RUEDA_ATTENTION_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

constexpr int64_t kBackQueries = 24;

// exp(s - lse - low) is exp(s - lse) times this: dout and delta carry it. Of 16 bits there is none.
template <class P>
HWY_INLINE float fold_of(const QueryHead& head, int64_t at) {
  return !P::kScalesRows || head.lse_low == nullptr
             ? 1.0f
             : hn::GetLane(exp_of(hn::Set(F(), -head.lse_low[at])));
}

template <class P>
HWY_INLINE void backward_of(const KernelTile& tile, float* scratch) {
  using Word = typename P::Word;
  constexpr int64_t kElements = P::kElements, kGrain = P::kGrain;
  const F d;
  const int64_t width = tile.head_dim, padded = round_up(width, kLanes);
  const int64_t depth = words_of<P>(width), words = padded / kElements;  // of a row
  const int64_t vectors = padded / kLanes;
  auto* k_panels = reinterpret_cast<Word*>(scratch);
  Word* v_panels = k_panels + kKeys * words;
  Word* k_lined = v_panels + kKeys * words;
  Word* queries = k_lined + kKeys * words;
  Word* douts = queries + kBackQueries * words;
  Word* buffer = douts + kBackQueries * words;
  auto* dk = reinterpret_cast<float*>(buffer + 4 * words);
  float* dv = dk + kKeys * padded;
  float* dq = dv + kKeys * padded;
  float* scores = dq + kBackQueries * padded;
  float* dp = scores + kBackQueries * kKeys;
  float* slopes = dp + kBackQueries * kKeys;  // of changed scores
  // Lined up for sums over queries, and dS by rows for those over keys; of one element to a word as
  // it is, in the places of scores and dP.
  auto* more = reinterpret_cast<Word*>(slopes + kBackQueries * kKeys);
  const bool apart = kElements > 1;
  Word* q_lined = apart ? more : queries;
  Word* o_lined = apart ? q_lined + kBackQueries * words : douts;
  Word* p = apart ? o_lined + kBackQueries * words : reinterpret_cast<Word*>(scores);
  Word* ds = apart ? p + kBackQueries * kKeys / kElements : reinterpret_cast<Word*>(dp);
  Word* ds_rows = apart ? ds + kBackQueries * kKeys / kElements : ds;
  const bool changes = changes_scores(tile);
  const float size = tile.scale < 0 ? -tile.scale : tile.scale;
  const float rest = P::kScalesRows ? 1.0f : size;  // of the scale, for scores
  Seen seen[kBackQueries];
  for (int64_t block = 0; block < tile.keys; block += kKeys) {
    const int64_t block_keys = min(kKeys, tile.keys - block);
    bool packed = false;
    for (int64_t start = 0; start < tile.queries; start += kBackQueries) {
      const int64_t rows = min(kBackQueries, tile.queries - start);
      const Seen all = seen_in_block(tile, start, rows, kBackQueries, block, block_keys, seen);
      if (all.from >= all.to) continue;
      if (!packed) {
        if constexpr (P::kScalesRows) {
          pack_keys<P>(tile, tile.k, block, block_keys, kPanel, padded, 1.0f, nullptr, k_panels,
                       buffer);
          pack_keys<P>(tile, tile.k, block, block_keys, kPanel, padded, tile.scale, k_lined,
                       nullptr, buffer);
        } else {
          pack_keys<P>(tile, tile.k, block, block_keys, kKeys, padded, 1.0f, k_lined, k_panels,
                       buffer);
        }
        pack_keys<P>(tile, tile.v, block, block_keys, kPanel, padded, 1.0f, nullptr, v_panels,
                     buffer);
        for (int64_t x = 0; x < 2 * kKeys * padded; x += kLanes) store(hn::Zero(d), dk + x);
        packed = true;
      }
      const int64_t begin = all.from / kGrain * kGrain;
      const int64_t end = round_up(all.to, kGrain);
      for (int64_t h = 0; h < tile.head_count; ++h) {
        const QueryHead& head = tile.heads[h];
        const int64_t groups = (rows + kRows - 1) / kRows;
        for (int64_t i = 0; i < groups * kRows; ++i) {
          Word* q = queries + i * words;
          Word* o = douts + i * words;
          if (i >= rows) {
            for (int64_t x = 0; x < words; ++x) q[x] = o[x] = 0;
            continue;
          }
          const int64_t row = tile.q_rows[start + i];
          P::take_row(head.q, row, width, padded, tile.scale, q);
          P::take_row(head.dout, row, width, padded, fold_of<P>(head, row * tile.ml_stride), o);
        }
        P::line_up(queries, groups * kRows, padded, q_lined);
        P::line_up(douts, groups * kRows, padded, o_lined);
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
            P::template multiply<kVecs, false>(queries + g * kRows * words, words, 1,
                                               k_panels + key * depth, kPanel, depth,
                                               scores + g * kRows * kKeys + key, kKeys);
          }
          for (int64_t g = 0; g < groups; ++g) {
            P::template multiply<kVecs, false>(douts + g * kRows * words, words, 1,
                                               v_panels + key * depth, kPanel, depth,
                                               dp + g * kRows * kKeys + key, kKeys);
          }
        }
        GradientRow of[kBackQueries];
        for (int64_t i = 0; i < groups * kRows; ++i) {
          float* s = scores + i * kKeys;
          of[i] = {s, dp + i * kKeys, slopes + i * kKeys, 0, 0, changes ? 1.0f : rest, {0, 0}};
          if (i >= rows || seen[i].from >= seen[i].to) continue;
          const int64_t at = tile.q_rows[start + i] * tile.ml_stride;
          of[i].lse = head.lse[at];
          of[i].delta = head.delta[at] * fold_of<P>(head, at);
          of[i].seen = seen[i];
          if (changes)
            change_row(tile, h, start + i, block, begin, end, rest, s, slopes + i * kKeys);
        }
        if (changes) {
          P::template weigh<true>(of, groups * kRows, begin, end, p, ds, ds_rows);
        } else {
          P::template weigh<false>(of, groups * kRows, begin, end, p, ds, ds_rows);
        }
        for (int64_t key = begin; key < end; key += kRows) {
          multiply_wide<P, true>(p + key, 1, kKeys, o_lined, padded, words_of<P>(rows),
                                 dv + key * padded, padded, vectors);
          multiply_wide<P, true>(ds + key, 1, kKeys, q_lined, padded, words_of<P>(rows),
                                 dk + key * padded, padded, vectors);
        }
        const int64_t from = kElements == 1 ? all.from : begin;
        const int64_t to = kElements == 1 ? all.to : end;
        for (int64_t g = 0; g < groups; ++g) {
          multiply_wide<P, false>(ds_rows + (g * kRows * kKeys + from) / kElements,
                                  kKeys / kElements, 1, k_lined + from / kElements * padded, padded,
                                  (to - from) / kElements, dq + g * kRows * padded, padded,
                                  vectors);
        }
        const float left = P::kScalesRows ? 1.0f : tile.scale;  // of the scale, for gradients
        for (int64_t i = 0; i < rows; ++i)
          add_row(head.dq + tile.q_rows[start + i] * tile.acc_stride, dq + i * padded, left, width);
      }
    }
    if (!packed) continue;
    for (int64_t j = 0; j < block_keys; ++j) {
      const int64_t at = tile.k_rows[block + j] * tile.dkv_stride;
      add_row(tile.dk + at, dk + j * padded, P::kScalesRows ? 1.0f : size, width);
      add_row(tile.dv + at, dv + j * padded, 1.0f, width);
    }
  }
}

}  // namespace rueda::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_ATTENTION_CPU_BACKWARD_INL_H_

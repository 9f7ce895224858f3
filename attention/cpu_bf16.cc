// Attention of bfloat16 on CPUs that multiply pairs of them (AVX512-BF16): VDPBF16PS adds two
// products per lane, so all seven products run at twice the rate of float32.
//
// Built as cpu_forward-inl.h and cpu_backward-inl.h are; here a word holds two bfloat16 that are
// neighbours in the direction of summation. Products are exact, sums float32. The weights P and the
// gradients of scores are rounded to bfloat16 for their products (the sums of P are not), an error
// of 2^-9 of each, unbiased: as large as what the rounding of inputs and outputs costs anyway.
//
// No std:: templates here: see collectives/kernels/targets.h.
#include "attention/cpu_bf16.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#include <string.h>

#include "attention/ahead.h"
#include "attention/seen.h"
#include "collectives/base/rounding.h"

#if defined(__clang__)
#pragma clang attribute push(                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")
#endif

namespace rueda::attention {
namespace {

constexpr int64_t kRows = 6, kLanes = 16, kVecs = 4;
constexpr int64_t kPanel = kVecs * kLanes;  // keys of a panel
constexpr int64_t kKeys = 192;              // scores of a row at a time
constexpr int64_t kTileQueries = 48, kBlockKeys = 4 * kKeys;
constexpr int64_t kBackQueries = 24;
constexpr float kSlack = 0;
constexpr int64_t kFetchAhead = 16;  // as in cpu_blocks-inl.h
constexpr int64_t kGrain = 96;       // whole groups of kRows, whole pairs of vectors

using Word = uint32_t;

// C[6][kCount vectors] = (kAdd ? C : 0) + sum over k < depth of A[i * row + k * step] . B[k * ldb].
// A function of its own, so that no register holds anything else.
template <int kCount, bool kAdd>
__attribute__((noinline)) void multiply(const Word* __restrict a, int64_t row, int64_t step,
                                        const Word* __restrict b, int64_t ldb, int64_t depth,
                                        float* __restrict c, int64_t ldc) {
  __m512 sum[kRows][kCount];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j)
      sum[i][j] = kAdd ? _mm512_loadu_ps(c + i * ldc + j * kLanes) : _mm512_setzero_ps();
  }
  const Word* a3 = a + 3 * row;
  for (int64_t k = 0; k < depth; ++k) {
    __m512i right[kCount];
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) right[j] = _mm512_loadu_si512(b + j * kLanes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      const __m512i left =
          _mm512_set1_epi32(static_cast<int>(i < 3 ? a[i * row] : a3[(i - 3) * row]));
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) {
        sum[i][j] = _mm512_dpbf16_ps(sum[i][j], reinterpret_cast<__m512bh>(left),
                                     reinterpret_cast<__m512bh>(right[j]));
      }
    }
    a += step;
    a3 += step;
    b += ldb;
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) _mm512_storeu_ps(c + i * ldc + j * kLanes, sum[i][j]);
  }
}

template <bool kAdd>
inline void multiply_wide(const Word* a, int64_t row, int64_t step, const Word* b, int64_t ldb,
                          int64_t depth, float* c, int64_t ldc, int64_t vectors) {
  int64_t parts = (vectors + kVecs - 1) / kVecs;
  while (vectors > 0) {
    const int64_t count = (vectors + parts - 1) / parts;
    switch (count) {
      case 1: multiply<1, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
      case 2: multiply<2, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
      case 3: multiply<3, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
      default: multiply<4, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
    }
    b += count * kLanes;
    c += count * kLanes;
    vectors -= count;
    --parts;
  }
}

// As exp_of in cpu_blocks-inl.h.
inline __m512 exp_of(__m512 x) {
  const __m512 log2e = _mm512_set1_ps(1.44269504088896341f);
  const __mmask16 seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
  const __m512 n =
      _mm512_roundscale_ps(_mm512_mul_ps(x, log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_fmsub_ps(x, log2e, n);
  __m512 p = _mm512_set1_ps(1.326472731e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.671512991e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550733581e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402224243e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931470037e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(seen, p, n);
}

// Of 16 lanes from `at` on, those in [from, to).
inline __mmask16 lanes_in(int64_t at, int64_t from, int64_t to) {
  const int64_t low = min(max(from - at, 0), kLanes), high = min(max(to - at, 0), kLanes);
  return static_cast<__mmask16>(((1u << high) - 1) & ~((1u << low) - 1));
}

// 32 bfloat16 of 32 floats, one after another.
inline void store_pairs(Word* to, __m512 first, __m512 second) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}
inline __m512i words(__m256i low, __m256i high) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}
// 16 words, each of a lane of one and of the other.
inline void store_words(Word* to, __m512 low, __m512 high) {
  _mm512_storeu_si512(to, words(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(low)),
                                reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(high))));
}

// One row, zeros up to `padded` elements.
inline void take_row(const RowsIn& rows, int64_t index, int64_t width, int64_t padded, Word* to) {
  memset(reinterpret_cast<char*>(to + width / 2), 0,
         static_cast<size_t>(2 * padded - width / 2 * 4));
  memcpy(to, rows.base + 2 * index * rows.stride, static_cast<size_t>(2 * width));
}

// Rows 2i and 2i + 1 of `rows` become words in to[i * padded].
inline void interleave(const Word* rows, int64_t count, int64_t padded, Word* to) {
  for (int64_t i = 0; i < count; i += 2) {
    const auto* low = reinterpret_cast<const __m256i*>(rows + i * padded / 2);
    const auto* high = reinterpret_cast<const __m256i*>(rows + (i + 1) * padded / 2);
    for (int64_t x = 0; x < padded / kLanes; ++x) {
      _mm512_storeu_si512(to + i / 2 * padded + x * kLanes,
                          words(_mm256_loadu_si256(low + x), _mm256_loadu_si256(high + x)));
    }
  }
}

// Four rows of `depth` words, `stride` apart, become columns of a panel.
inline void transpose_four(const Word* from, int64_t stride, int64_t depth, Word* to) {
  int64_t x = 0;
  for (; x + 4 <= depth; x += 4) {
    __m128 row[4];
    for (int64_t i = 0; i < 4; ++i)
      row[i] = _mm_loadu_ps(reinterpret_cast<const float*>(from + i * stride + x));
    _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
    for (int64_t i = 0; i < 4; ++i)
      _mm_storeu_ps(reinterpret_cast<float*>(to + (x + i) * kPanel), row[i]);
  }
  for (; x < depth; ++x) {
    for (int64_t i = 0; i < 4; ++i) to[x * kPanel + i] = from[i * stride + x];
  }
}

// Keys [first, first + count) of the tile, transposed in panels ([panel][word][key]) and, where so
// asked, interleaved; what is missing from whole grains is zeros. buffer: four rows.
inline void pack_keys(const KernelTile& tile, const RowsIn& rows, int64_t first, int64_t count,
                      int64_t padded, Word* panels, Word* interleaved, Word* buffer) {
  const int64_t depth = (tile.head_dim + 1) / 2, half = padded / 2;
  for (int64_t four = 0; four < round_up(count, kKeys); four += 4) {
    for (int64_t j = four; j < four + 4; ++j) {
      Word* row = buffer + (j - four) * half;
      if (j + kFetchAhead < count)
        fetch_row(rows, tile.k_rows[first + j + kFetchAhead], tile.head_dim);
      if (j < count) {
        take_row(rows, tile.k_rows[first + j], tile.head_dim, padded, row);
      } else {
        memset(row, 0, static_cast<size_t>(2 * padded));
      }
    }
    if (panels != nullptr)
      transpose_four(buffer, half, depth, panels + four / kPanel * kPanel * depth + four % kPanel);
    if (interleaved != nullptr) interleave(buffer, 4, padded, interleaved + four / 2 * padded);
  }
}

// The largest of the scores s[begin, end) in [from, to).
inline float largest_of(const float* s, int64_t begin, int64_t end, int64_t from, int64_t to) {
  const bool whole = from <= begin && to >= end;
  const __m512 lowest = _mm512_set1_ps(-3.402823466e38f);
  __m512 most[2] = {lowest, lowest};
  for (int64_t j = begin; j < end; j += 2 * kLanes) {
    for (int64_t h = 0; h < 2; ++h) {
      const int64_t at = j + h * kLanes;
      const __mmask16 in = whole ? __mmask16{0xffff} : lanes_in(at, from, to);
      most[h] = _mm512_mask_max_ps(most[h], in, most[h], _mm512_loadu_ps(s + at));
    }
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1]));
}

// s[begin, end) becomes exp(scale * s - m) in p, a bfloat16 each, zero outside [from, to). Returns
// the sum.
inline float exp_row(const float* s, Word* p, int64_t begin, int64_t end, int64_t from, int64_t to,
                     float scale, float m) {
  const bool whole = from <= begin && to >= end;
  const __m512 shift = _mm512_set1_ps(m), factor = _mm512_set1_ps(scale);
  __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t j = begin; j < end; j += 2 * kLanes) {
    __m512 x[2];
    for (int64_t h = 0; h < 2; ++h) {
      const int64_t at = j + h * kLanes;
      x[h] = exp_of(_mm512_fmsub_ps(_mm512_loadu_ps(s + at), factor, shift));
      if (!whole) x[h] = _mm512_maskz_mov_ps(lanes_in(at, from, to), x[h]);
      sum[h] = _mm512_add_ps(sum[h], x[h]);
    }
    store_pairs(p + j / 2, x[0], x[1]);
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1]));
}

// As in cpu_forward-inl.h; the weights go to p, a bfloat16 each. begin and end are multiples of 32.
inline void softmax_rows(const float* s, Word* p, int64_t begin, int64_t end, const Seen* seen,
                         int64_t part, float scale, float* m, float* l, float* acc,
                         int64_t padded) {
  Seen here[kRows];
  float largest[kRows];
  for (int64_t i = 0; i < kRows; ++i) {
    here[i] = {seen[i].from - part, min(seen[i].to - part, end)};
    largest[i] = 0;
    if (here[i].from < here[i].to)
      largest[i] = scale * largest_of(s + i * kKeys, begin, end, here[i].from, here[i].to);
  }
  for (int64_t i = 0; i < kRows; ++i) {
    if (here[i].from >= here[i].to || !(largest[i] > m[i] + kSlack)) continue;
    const __m512 shrink = exp_of(_mm512_set1_ps(m[i] - largest[i]));
    l[i] *= _mm512_cvtss_f32(shrink);
    m[i] = largest[i];
    float* a = acc + i * padded;
    for (int64_t x = 0; x < padded; x += kLanes)
      _mm512_storeu_ps(a + x, _mm512_mul_ps(_mm512_loadu_ps(a + x), shrink));
  }
  for (int64_t i = 0; i < kRows; ++i) {
    if (here[i].from < here[i].to) {
      l[i] += exp_row(s + i * kKeys, p + i * kKeys / 2, begin, end, here[i].from, here[i].to, scale,
                      m[i]);
    } else {
      memset(p + (i * kKeys + begin) / 2, 0, static_cast<size_t>(2 * (end - begin)));
    }
  }
}

void forward(const KernelTile& tile, float* scratch) {
  const int64_t width = tile.head_dim, padded = round_up(width, kLanes), half = padded / 2;
  const int64_t depth = (width + 1) / 2;
  const float scale = tile.scale < 0 ? -tile.scale : tile.scale;
  const Word flip = tile.scale < 0 ? 0x80008000u : 0;
  auto* panels = reinterpret_cast<Word*>(scratch);
  Word* values = panels + kBlockKeys * half;
  Word* queries = values + kBlockKeys * half;
  Word* weights = queries + kTileQueries * half;
  Word* buffer = weights + kTileQueries * kKeys / 2;
  auto* acc = reinterpret_cast<float*>(buffer + 4 * half);
  float* scores = acc + kTileQueries * padded;
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
        pack_keys(tile, tile.k, block, block_keys, padded, panels, nullptr, buffer);
        pack_keys(tile, tile.v, block, block_keys, padded, nullptr, values, buffer);
        packed = true;
      }
      for (int64_t h = 0; h < tile.head_count; ++h) {
        const QueryHead& head = tile.heads[h];
        for (int64_t i = 0; i < round_up(rows, kRows); ++i) {
          Word* q = queries + i * half;
          float* a = acc + i * padded;
          for (int64_t x = 0; x < padded; x += kLanes) _mm512_storeu_ps(a + x, _mm512_setzero_ps());
          if (i >= rows) {
            memset(q, 0, static_cast<size_t>(2 * padded));
            continue;
          }
          const int64_t row = tile.q_rows[start + i];
          take_row(head.q, row, width, padded, q);
          for (int64_t x = 0; x < depth && flip != 0; ++x) q[x] ^= flip;
          memcpy(a, head.acc + row * tile.acc_stride, static_cast<size_t>(width) * sizeof(float));
          m[i] = head.m[row * tile.ml_stride];
          l[i] = head.l[row * tile.ml_stride];
        }
        const NextQueries next = after(tile, start, h, kTileQueries);
        const int64_t first_part = all.from / kKeys * kKeys;
        for (int64_t part = first_part; part < all.to; part += kKeys) {
          const int64_t part_keys = min(kKeys, block_keys - part);
          for (int64_t g = 0; g * kRows < rows; ++g) {
            for (int64_t i = next.start + g * kRows;
                 part == first_part && i < min(next.start + (g + 1) * kRows, tile.queries); ++i) {
              const QueryHead& other = tile.heads[next.head];
              fetch_row(other.q, tile.q_rows[i], width);
              fetch_row(rows_of(other.acc, tile.acc_stride), tile.q_rows[i], width);
            }
            const Seen group = seen_in_part(seen + g * kRows, kRows, part, part_keys);
            if (group.from >= group.to) continue;
            float* s = scores + g * kRows * kKeys;
            for (int64_t key = group.from / kPanel * kPanel; key < group.to; key += kPanel) {
              multiply<kVecs, false>(queries + g * kRows * half, half, 1,
                                     panels + (part + key) * depth, kPanel, depth, s + key, kKeys);
            }
            const int64_t begin = group.from / (2 * kLanes) * (2 * kLanes);
            const int64_t end = round_up(group.to, 2 * kLanes);
            softmax_rows(s, weights + g * kRows * kKeys / 2, begin, end, seen + g * kRows, part,
                         scale, m + g * kRows, l + g * kRows, acc + g * kRows * padded, padded);
            multiply_wide<true>(weights + (g * kRows * kKeys + begin) / 2, kKeys / 2, 1,
                                values + (part + begin) / 2 * padded, padded, (end - begin) / 2,
                                acc + g * kRows * padded, padded, padded / kLanes);
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

// to[0, width) += factor * from.
inline void add_row(float* to, const float* from, float factor, int64_t width) {
  const __m512 f = _mm512_set1_ps(factor);
  for (int64_t x = 0; x < width; x += kLanes) {
    const __mmask16 in = lanes_in(x, 0, width);
    const __m512 sum =
        _mm512_fmadd_ps(_mm512_loadu_ps(from + x), f, _mm512_maskz_loadu_ps(in, to + x));
    _mm512_mask_storeu_ps(to + x, in, sum);
  }
}

// P and dS of one row at keys [at, at + 16).
struct Weights {
  __m512 p, ds;
};
struct Row {
  const float *s, *dp;
  float lse, delta;
  Seen seen;
};
inline Weights weights_of(const Row& row, int64_t at, float scale) {
  const __mmask16 in = lanes_in(at, row.seen.from, row.seen.to);
  const __m512 p = _mm512_maskz_mov_ps(
      in, exp_of(_mm512_fmsub_ps(_mm512_loadu_ps(row.s + at), _mm512_set1_ps(scale),
                                 _mm512_set1_ps(row.lse))));
  const __m512 ds = _mm512_maskz_mul_ps(
      in, p, _mm512_sub_ps(_mm512_loadu_ps(row.dp + at), _mm512_set1_ps(row.delta)));
  return {p, ds};
}

void backward(const KernelTile& tile, float* scratch) {
  const int64_t width = tile.head_dim, padded = round_up(width, kLanes), half = padded / 2;
  const int64_t depth = (width + 1) / 2, vectors = padded / kLanes;
  auto* k_panels = reinterpret_cast<Word*>(scratch);
  Word* v_panels = k_panels + kKeys * half;
  Word* k_words = v_panels + kKeys * half;
  Word* queries = k_words + kKeys * half;
  Word* douts = queries + kBackQueries * half;
  Word* q_words = douts + kBackQueries * half;
  Word* o_words = q_words + kBackQueries * half;
  Word* p_words = o_words + kBackQueries * half;
  Word* ds_words = p_words + kBackQueries * kKeys / 2;
  Word* ds_rows = ds_words + kBackQueries * kKeys / 2;
  Word* buffer = ds_rows + kBackQueries * kKeys / 2;
  auto* dk = reinterpret_cast<float*>(buffer + 4 * half);
  float* dv = dk + kKeys * padded;
  float* dq = dv + kKeys * padded;
  float* s = dq + kBackQueries * padded;
  float* dp = s + kBackQueries * kKeys;
  Seen seen[kBackQueries];
  for (int64_t block = 0; block < tile.keys; block += kKeys) {
    const int64_t block_keys = min(kKeys, tile.keys - block);
    bool packed = false;
    for (int64_t start = 0; start < tile.queries; start += kBackQueries) {
      const int64_t rows = min(kBackQueries, tile.queries - start);
      const Seen all = seen_in_block(tile, start, rows, kBackQueries, block, block_keys, seen);
      if (all.from >= all.to) continue;
      if (!packed) {
        pack_keys(tile, tile.k, block, block_keys, padded, k_panels, k_words, buffer);
        pack_keys(tile, tile.v, block, block_keys, padded, v_panels, nullptr, buffer);
        for (int64_t x = 0; x < 2 * kKeys * padded; x += kLanes)
          _mm512_storeu_ps(dk + x, _mm512_setzero_ps());
        packed = true;
      }
      const int64_t begin = all.from / kGrain * kGrain, end = round_up(all.to, kGrain);
      const int64_t whole = round_up(rows, kRows);  // even
      for (int64_t h = 0; h < tile.head_count; ++h) {
        const QueryHead& head = tile.heads[h];
        for (int64_t i = 0; i < whole; ++i) {
          if (i < rows) {
            const int64_t row = tile.q_rows[start + i];
            take_row(head.q, row, width, padded, queries + i * half);
            take_row(head.dout, row, width, padded, douts + i * half);
          } else {
            memset(queries + i * half, 0, static_cast<size_t>(2 * padded));
            memset(douts + i * half, 0, static_cast<size_t>(2 * padded));
          }
        }
        interleave(queries, whole, padded, q_words);
        interleave(douts, whole, padded, o_words);
        const NextQueries next = after(tile, start, h, kBackQueries);
        const int64_t first_key = begin / kPanel * kPanel;
        for (int64_t key = first_key; key < end; key += kPanel) {
          for (int64_t i = 0; i < whole; i += kRows) {
            for (int64_t j = next.start + i;
                 key == first_key && j < min(next.start + i + kRows, tile.queries); ++j) {
              const QueryHead& other = tile.heads[next.head];
              fetch_row(other.q, tile.q_rows[j], width);
              fetch_row(other.dout, tile.q_rows[j], width);
              fetch_row(rows_of(other.dq, tile.acc_stride), tile.q_rows[j], width);
            }
            multiply<kVecs, false>(queries + i * half, half, 1, k_panels + key * depth, kPanel,
                                   depth, s + i * kKeys + key, kKeys);
            multiply<kVecs, false>(douts + i * half, half, 1, v_panels + key * depth, kPanel, depth,
                                   dp + i * kKeys + key, kKeys);
          }
        }
        for (int64_t i = 0; i < whole; i += 2) {
          Row pair[2];
          for (int64_t r = 0; r < 2; ++r) {
            const bool real = i + r < rows && seen[i + r].from < seen[i + r].to;
            const int64_t row = real ? tile.q_rows[start + i + r] * tile.ml_stride : 0;
            pair[r] = {s + (i + r) * kKeys, dp + (i + r) * kKeys, real ? head.lse[row] : 0,
                       real ? head.delta[row] : 0, real ? seen[i + r] : Seen{0, 0}};
          }
          for (int64_t j = begin; j < end; j += 2 * kLanes) {
            Weights w[2][2];  // row, half
            for (int64_t r = 0; r < 2; ++r) {
              for (int64_t x = 0; x < 2; ++x)
                w[r][x] = weights_of(pair[r], j + x * kLanes, tile.scale);
              store_pairs(ds_rows + ((i + r) * kKeys + j) / 2, w[r][0].ds, w[r][1].ds);
            }
            for (int64_t x = 0; x < 2; ++x) {
              const int64_t at = i / 2 * kKeys + j + x * kLanes;
              store_words(p_words + at, w[0][x].p, w[1][x].p);
              store_words(ds_words + at, w[0][x].ds, w[1][x].ds);
            }
          }
        }
        for (int64_t key = begin; key < end; key += kRows) {
          multiply_wide<true>(p_words + key, 1, kKeys, o_words, padded, whole / 2,
                              dv + key * padded, padded, vectors);
          multiply_wide<true>(ds_words + key, 1, kKeys, q_words, padded, whole / 2,
                              dk + key * padded, padded, vectors);
        }
        for (int64_t i = 0; i < whole; i += kRows) {
          multiply_wide<false>(ds_rows + (i * kKeys + begin) / 2, kKeys / 2, 1,
                               k_words + begin / 2 * padded, padded, (end - begin) / 2,
                               dq + i * padded, padded, vectors);
        }
        for (int64_t i = 0; i < rows; ++i)
          add_row(head.dq + tile.q_rows[start + i] * tile.acc_stride, dq + i * padded, tile.scale,
                  width);
      }
    }
    if (!packed) continue;
    for (int64_t j = 0; j < block_keys; ++j) {
      const int64_t at = tile.k_rows[block + j] * tile.dkv_stride;
      add_row(tile.dk + at, dk + j * padded, tile.scale, width);
      add_row(tile.dv + at, dv + j * padded, 1, width);
    }
  }
}

}  // namespace

void bf16_forward(const KernelTile& tile, float* scratch) { forward(tile, scratch); }
void bf16_backward(const KernelTile& tile, float* scratch) { backward(tile, scratch); }

}  // namespace rueda::attention

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else

namespace rueda::attention {
void bf16_forward(const KernelTile&, float*) {}
void bf16_backward(const KernelTile&, float*) {}
}  // namespace rueda::attention

#endif

// The policy of pairs of bfloat16 (AVX512-BF16): VDPBF16PS adds two products per lane, so all seven
// products run at twice the rate of float32. Products are exact, sums float32. The weights P and
// the gradients of scores are rounded to bfloat16 for their products (the sums of P are not), an
// error of 2^-9 of each, unbiased: as large as what the rounding of inputs and outputs costs
// anyway.
#if defined(RUEDA_ATTENTION_CPU_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_ATTENTION_CPU_PAIRS_INL_H_
#undef RUEDA_ATTENTION_CPU_PAIRS_INL_H_
#else
#define RUEDA_ATTENTION_CPU_PAIRS_INL_H_
#endif

#include "attention/cpu_blocks-inl.h"
#include "hwy/highway.h"

RUEDA_ATTENTION_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 && defined(__x86_64__)

struct Pairs {
  using Word = uint32_t;
  static constexpr int64_t kElements = 2;
  static constexpr bool kScalesRows = false;  // scores and gradients are scaled: rows stay exact
  static constexpr float kSlack = 0;
  static constexpr int64_t kGroups = 1;  // scores stay in the first-level cache
  static constexpr int64_t kGrain = 96;  // whole groups of kRows, whole pairs of vectors

  // A function of its own, so that no register holds anything else.
  template <int kCount, bool kAdd>
  static __attribute__((noinline)) void multiply(const Word* HWY_RESTRICT a, int64_t row,
                                                 int64_t step, const Word* HWY_RESTRICT b,
                                                 int64_t ldb, int64_t depth, float* HWY_RESTRICT c,
                                                 int64_t ldc) {
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

  // One row, zeros up to `padded` elements; of factor its sign.
  static HWY_INLINE void take_row(const RowsIn& rows, int64_t index, int64_t width, int64_t padded,
                                  float factor, Word* to) {
    memset(to + width / 2, 0, static_cast<size_t>(2 * padded - width / 2 * 4));
    memcpy(to, rows.base + 2 * index * rows.stride, static_cast<size_t>(2 * width));
    for (int64_t x = 0; factor < 0 && x < padded / 2; ++x) to[x] ^= 0x80008000u;
  }

  // Rows 2i and 2i + 1 of `rows` become words in to[i * padded].
  static HWY_INLINE void line_up(const Word* rows, int64_t count, int64_t padded, Word* to) {
    for (int64_t i = 0; i < count; i += 2) {
      const auto* low = reinterpret_cast<const __m256i*>(rows + i * padded / 2);
      const auto* high = reinterpret_cast<const __m256i*>(rows + (i + 1) * padded / 2);
      for (int64_t x = 0; x < padded / kLanes; ++x) {
        _mm512_storeu_si512(to + i / 2 * padded + x * kLanes,
                            words(_mm256_loadu_si256(low + x), _mm256_loadu_si256(high + x)));
      }
    }
  }

  // 32 bfloat16 of 32 floats, one after another.
  static HWY_INLINE void put(V p0, V p1, Word* to) {
    _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(p1.raw, p0.raw)));
  }

  // P and dS of keys [begin, end): words of two rows in p and ds, and dS by rows in ds_rows.
  template <bool kChanged>
  static HWY_INLINE void weigh(const GradientRow* rows, int64_t count, int64_t begin, int64_t end,
                               Word* p, Word* ds, Word* ds_rows) {
    for (int64_t i = 0; i < count; i += 2) {
      const GradientRow pair[2] = {rows[i], rows[i + 1]};
      for (int64_t j = begin; j < end; j += 2 * kLanes) {
        Weights w[2][2];  // row, half
        for (int64_t r = 0; r < 2; ++r) {
          for (int64_t x = 0; x < 2; ++x)
            w[r][x] = weights_of<false, kChanged>(pair[r], j + x * kLanes);
          put(w[r][0].ds, w[r][1].ds, ds_rows + ((i + r) * kKeys + j) / 2);
        }
        for (int64_t x = 0; x < 2; ++x) {
          const int64_t at = i / 2 * kKeys + j + x * kLanes;
          put_rows(w[0][x].p, w[1][x].p, p + at);
          put_rows(w[0][x].ds, w[1][x].ds, ds + at);
        }
      }
    }
  }

 private:
  static HWY_INLINE __m512i words(__m256i low, __m256i high) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  }
  // 16 words, each of a lane of one and of the other.
  static HWY_INLINE void put_rows(V low, V high, Word* to) {
    _mm512_storeu_si512(to, words(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(low.raw)),
                                  reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(high.raw))));
  }
};

#endif

}  // namespace rueda::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_ATTENTION_CPU_PAIRS_INL_H_

// The policy of everything in float32: elements of 16 bits are widened as they are packed.
#if defined(RUEDA_ATTENTION_CPU_FLOATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_ATTENTION_CPU_FLOATS_INL_H_
#undef RUEDA_ATTENTION_CPU_FLOATS_INL_H_
#else
#define RUEDA_ATTENTION_CPU_FLOATS_INL_H_
#endif

#include "attention/cpu_blocks-inl.h"
#include "hwy/highway.h"

RUEDA_ATTENTION_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

struct Floats {
  using Word = float;
  static constexpr int64_t kElements = 1;
  static constexpr bool kScalesRows = true;  // queries and lined up keys carry the scale
  // A row is scaled to a new largest score only when that is so much larger: weights up to exp(8).
  static constexpr float kSlack = 8;
  static constexpr int64_t kGroups = 8;  // of kRows queries that use a panel one after the other
  static constexpr int64_t kGrain = 48;  // of keys in backward: whole vectors and groups of kRows

  // C[6][kCount vectors] = (kAdd ? C : 0) + the sum over k < depth of
  // A[i * row + k * step] * B[k * ldb].
  template <int kCount, bool kAdd>
  static HWY_INLINE void multiply(const float* HWY_RESTRICT a, int64_t row, int64_t step,
                                  const float* HWY_RESTRICT b, int64_t ldb, int64_t depth,
                                  float* HWY_RESTRICT c, int64_t ldc) {
    const F d;
    V sum[kRows][kCount];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j)
        sum[i][j] = kAdd ? load(c + i * ldc + j * kLanes) : hn::Zero(d);
    }
    const float* a3 = a + 3 * row;
    for (int64_t k = 0; k < depth; ++k) {
      V right[kCount];
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) right[j] = load(b + j * kLanes);
#pragma GCC unroll 8
      for (int64_t i = 0; i < kRows; ++i) {
        const V left = hn::Set(d, i < 3 ? a[i * row] : a3[(i - 3) * row]);
#pragma GCC unroll 8
        for (int j = 0; j < kCount; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
      }
      a += step;
      a3 += step;
      b += ldb;
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) store(sum[i][j], c + i * ldc + j * kLanes);
    }
  }

  // One row times `factor`, zeros up to `padded` elements.
  static HWY_INLINE void take_row(const RowsIn& rows, int64_t index, int64_t width, int64_t padded,
                                  float factor, Word* to) {
    widen_row(rows, index, width, padded, factor, to);
  }
  static HWY_INLINE void line_up(const Word*, int64_t, int64_t, Word*) {}  // they are

  // Weights of the keys [j, j + 2 * kLanes) of a row.
  static HWY_INLINE void put(V p0, V p1, Word* to) {
    store(p0, to);
    store(p1, to + kLanes);
  }

  // P and dS of keys [begin, end) take the places of scores and dP.
  template <bool kChanged>
  static HWY_INLINE void weigh(const GradientRow* rows, int64_t count, int64_t begin, int64_t end,
                               Word* p, Word* ds, Word*) {
    for (int64_t i = 0; i < count; ++i) {
      const GradientRow row = rows[i];
      for (int64_t j = begin; j < end; j += kLanes) {
        const Weights w = weights_of<true, kChanged>(row, j);
        store(w.p, p + i * kKeys + j);
        store(w.ds, ds + i * kKeys + j);
      }
    }
  }
};

}  // namespace rueda::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_ATTENTION_CPU_FLOATS_INL_H_

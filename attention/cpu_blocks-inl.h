// What forward and backward share: the multiplication, exp, packing of rows, the band of a tile.
#if defined(RUEDA_ATTENTION_CPU_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_ATTENTION_CPU_BLOCKS_INL_H_
#undef RUEDA_ATTENTION_CPU_BLOCKS_INL_H_
#else
#define RUEDA_ATTENTION_CPU_BLOCKS_INL_H_
#endif

#include "attention/ahead.h"
#include "attention/local_kernel.h"
#include "attention/seen.h"
#include "collectives/base/rounding.h"
#include "collectives/kernels/half-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Half16 = rueda::kernels::HWY_NAMESPACE::Float16Codec;
using Brain16 = rueda::kernels::HWY_NAMESPACE::BFloat16Codec;
using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F()));
// Registers of the sums: kRows x kVecs, beside kVecs of B and one of A.
constexpr int64_t kRows = 6;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON || HWY_TARGET == HWY_SCALAR
constexpr int kVecs = 4;
#else
constexpr int kVecs = 2;
#endif
constexpr int64_t kPanel = kVecs * kLanes;  // keys of a panel, a multiple of four
constexpr int64_t kKeys = 192;              // of a block: whole panels, whole groups of kRows

HWY_INLINE V load(const float* from) { return hn::LoadU(F(), from); }
HWY_INLINE void store(V v, float* to) { hn::StoreU(v, F(), to); }

// C[6][kCount vectors] = (kAdd ? C : 0) + sum over k < depth of A[i * row + k * step] * B[k * ldb].
template <int kCount, bool kAdd>
HWY_INLINE void multiply(const float* HWY_RESTRICT a, int64_t row, int64_t step,
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

// The same for `vectors` vectors of columns, in parts as even as can be.
template <bool kAdd>
HWY_INLINE void multiply_wide(const float* a, int64_t row, int64_t step, const float* b,
                              int64_t ldb, int64_t depth, float* c, int64_t ldc, int64_t vectors) {
  int64_t parts = (vectors + kVecs - 1) / kVecs;
  while (vectors > 0) {
    const int64_t count = (vectors + parts - 1) / parts;
    switch (count) {
      case 1: multiply<1, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
      case 2: multiply<2, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON || HWY_TARGET == HWY_SCALAR
      case 3: multiply<3, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
      default: multiply<4, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
#else
      default: break;
#endif
    }
    b += count * kLanes;
    c += count * kLanes;
    vectors -= count;
    --parts;
  }
}

// exp for x < 88, error under two ulps near 0 and 1.6e-8 * |x| beyond; 0 below -87 and for
// -infinity. NaN stays NaN: a score that is none must not pass for a key that is not seen.
// 2^n * 2^f with |f| <= 1/2: the polynomial is the best of degree 5 that is 1 at 0 (error 9e-8).
HWY_INLINE V exp_of(V x) {
  const F d;
  const V log2e = hn::Set(d, 1.44269504088896341f);
  const V least = hn::Set(d, -87.0f);
#if HWY_TARGET == HWY_AVX3
  // Scaling by a power of two is one instruction, and its mask makes zeros of what is too small.
  const V nf = hn::Round(hn::Mul(x, log2e));
#else
  const auto too_small = hn::Lt(x, least);
  x = hn::Max(least, x);  // in this order: x86 gives the second where one is NaN
  const hn::RebindToSigned<F> di;
  const auto n = hn::NearestInt(hn::Mul(x, log2e));
  const V nf = hn::ConvertTo(d, n);
#endif
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SCALAR
  // Without fused multiplication the product is rounded: first what is left of x, in two steps.
  V f = hn::Sub(x, hn::Mul(nf, hn::Set(d, 0.693359375f)));
  f = hn::Mul(hn::Add(f, hn::Mul(nf, hn::Set(d, 2.12194440e-4f))), log2e);
#else
  const V f = hn::MulSub(x, log2e, nf);
#endif
  V p = hn::Set(d, 1.326472731e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 9.671512991e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550733581e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402224243e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931470037e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
#if HWY_TARGET == HWY_AVX3
  const __mmask16 seen = _mm512_cmp_ps_mask(x.raw, least.raw, _CMP_NLT_UQ);
  return V{_mm512_maskz_scalef_ps(seen, p.raw, nf.raw)};
#else
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  return hn::IfThenZeroElse(too_small, hn::Mul(p, power));
#endif
}

// The lanes at, at + 1, ... that lie in [from, to).
HWY_INLINE hn::Mask<F> lanes_in(int64_t at, int64_t from, int64_t to) {
  const F d;
  const V index = hn::Add(hn::Iota(d, 0.0f), hn::Set(d, static_cast<float>(at)));
  return hn::And(hn::Ge(index, hn::Set(d, static_cast<float>(from))),
                 hn::Lt(index, hn::Set(d, static_cast<float>(to))));
}

// One row as float32 times `factor`, zeros up to `padded` elements.
HWY_INLINE void widen_row(const RowsIn& rows, int64_t index, int64_t width, int64_t padded,
                          float factor, float* to) {
  const F d;
  const V scale = hn::Set(d, factor);
  int64_t x = 0;
  if (rows.dtype == 7) {
    const float* from = reinterpret_cast<const float*>(rows.base) + index * rows.stride;
    for (; x + kLanes <= width; x += kLanes) store(hn::Mul(load(from + x), scale), to + x);
    for (; x < width; ++x) to[x] = from[x] * factor;
  } else {
    const std::byte* from = rows.base + 2 * index * rows.stride;
    const bool brain = rows.dtype == 10;
    for (; x < width; x += kLanes) {
      alignas(64) std::byte tail[2 * kLanes] = {};
      const std::byte* source = from + 2 * x;
      if (x + kLanes > width) {
        memcpy(tail, source, static_cast<size_t>(2 * (width - x)));
        source = tail;
      }
      store(hn::Mul(brain ? Brain16::widen(d, source) : Half16::widen(d, source), scale), to + x);
    }
    x = width;
  }
  // padded is whole vectors; those that hold elements have been written in full for 16 bits.
  for (; x < padded; ++x) to[x] = 0.0f;
}

// Four rows, `stride` apart, of `width` elements become columns of a panel.
HWY_INLINE void transpose_four(const float* from, int64_t stride, int64_t width, float* to) {
  int64_t x = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> pairs;
  for (; x + 4 <= width; x += 4) {
    const auto a = hn::LoadU(d, from + x), b = hn::LoadU(d, from + stride + x);
    const auto c = hn::LoadU(d, from + 2 * stride + x), e = hn::LoadU(d, from + 3 * stride + x);
    const auto low_ab = hn::BitCast(pairs, hn::InterleaveLower(d, a, b));
    const auto low_ce = hn::BitCast(pairs, hn::InterleaveLower(d, c, e));
    const auto high_ab = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
    const auto high_ce = hn::BitCast(pairs, hn::InterleaveUpper(d, c, e));
    float* at = to + x * kPanel;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low_ab, low_ce)), d, at);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low_ab, low_ce)), d, at + kPanel);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high_ab, high_ce)), d, at + 2 * kPanel);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high_ab, high_ce)), d, at + 3 * kPanel);
  }
#endif
  for (; x < width; ++x) {
    for (int64_t i = 0; i < 4; ++i) to[x * kPanel + i] = from[i * stride + x];
  }
}

// Rows are fetched so many rows before they are packed: small tiles come from anywhere in memory.
constexpr int64_t kFetchAhead = 16;

// Keys [first, first + count) of the tile: by rows, and transposed in panels of kPanel keys
// ([panel][element][key]). Either may be null. Rows that are missing from whole panels are zeros.
// row_buffer: four rows.
HWY_INLINE void pack_keys(const KernelTile& tile, const RowsIn& rows, int64_t first, int64_t count,
                          int64_t padded, float factor, float* by_row, float* panels,
                          float* row_buffer) {
  const int64_t whole = round_up(count, kPanel);
  for (int64_t four = 0; four < whole; four += 4) {
    float* some = by_row != nullptr ? by_row + four * padded : row_buffer;
    for (int64_t j = four; j < min(four + 4, count - kFetchAhead); ++j)
      fetch_row(rows, tile.k_rows[first + j + kFetchAhead], tile.head_dim);
    for (int64_t j = four; j < four + 4; ++j) {
      float* row = some + (j - four) * padded;
      if (j < count) {
        widen_row(rows, tile.k_rows[first + j], tile.head_dim, padded, factor, row);
      } else {
        for (int64_t x = 0; x < padded; ++x) row[x] = 0.0f;
      }
    }
    if (panels == nullptr) continue;
    transpose_four(some, padded, tile.head_dim,
                   panels + four / kPanel * kPanel * tile.head_dim + four % kPanel);
  }
}

}  // namespace rueda::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_ATTENTION_CPU_BLOCKS_INL_H_

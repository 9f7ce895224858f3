// What forward and backward share: exp, packing of rows, products of many columns. What is
// multiplied and how it lies is a policy, a template argument P: Floats (cpu_floats-inl.h), and
// where the CPU multiplies pairs of bfloat16, Pairs (cpu_pairs-inl.h). A policy's Word holds
// P::kElements elements that are neighbours in the direction of summation.
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

// Attention's code for AVX-512 is compiled with the instructions of AVX512-BF16 beside. Only Pairs
// has any, and it is called where the CPU has them.
#undef RUEDA_ATTENTION_BEFORE_NAMESPACE
#if HWY_TARGET == HWY_AVX3
#define RUEDA_ATTENTION_BEFORE_NAMESPACE() \
  HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16") static_assert(true, "for the semicolon")
#else
#define RUEDA_ATTENTION_BEFORE_NAMESPACE() HWY_BEFORE_NAMESPACE()
#endif

RUEDA_ATTENTION_BEFORE_NAMESPACE();
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

// C[6][vectors] = (kAdd ? C : 0) + sum over k < depth of A[i * row + k * step] * B[k * ldb], in
// parts of at most kVecs vectors, as even as can be.
template <class P, bool kAdd>
HWY_INLINE void multiply_wide(const typename P::Word* a, int64_t row, int64_t step,
                              const typename P::Word* b, int64_t ldb, int64_t depth, float* c,
                              int64_t ldc, int64_t vectors) {
  int64_t parts = (vectors + kVecs - 1) / kVecs;
  while (vectors > 0) {
    const int64_t count = (vectors + parts - 1) / parts;
    switch (count) {
      case 1: P::template multiply<1, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
      case 2: P::template multiply<2, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON || HWY_TARGET == HWY_SCALAR
      case 3: P::template multiply<3, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
      default: P::template multiply<4, kAdd>(a, row, step, b, ldb, depth, c, ldc); break;
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

// Four rows, `stride` apart, of `depth` words become columns of a panel.
template <typename Word>
HWY_INLINE void transpose_four(const Word* from, int64_t stride, int64_t depth, Word* to) {
  int64_t x = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<Word, 4> d;
  const hn::Repartition<double, decltype(d)> pairs;
  for (; x + 4 <= depth; x += 4) {
    const auto a = hn::LoadU(d, from + x), b = hn::LoadU(d, from + stride + x);
    const auto c = hn::LoadU(d, from + 2 * stride + x), e = hn::LoadU(d, from + 3 * stride + x);
    const auto low_ab = hn::BitCast(pairs, hn::InterleaveLower(d, a, b));
    const auto low_ce = hn::BitCast(pairs, hn::InterleaveLower(d, c, e));
    const auto high_ab = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
    const auto high_ce = hn::BitCast(pairs, hn::InterleaveUpper(d, c, e));
    Word* at = to + x * kPanel;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low_ab, low_ce)), d, at);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low_ab, low_ce)), d, at + kPanel);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high_ab, high_ce)), d, at + 2 * kPanel);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high_ab, high_ce)), d, at + 3 * kPanel);
  }
#endif
  for (; x < depth; ++x) {
    for (int64_t i = 0; i < 4; ++i) to[x * kPanel + i] = from[i * stride + x];
  }
}

// Rows are fetched so many rows before they are packed: small tiles come from anywhere in memory.
constexpr int64_t kFetchAhead = 16;

// Words that hold `width` elements.
template <class P>
HWY_INLINE int64_t words_of(int64_t width) {
  return (width + P::kElements - 1) / P::kElements;
}

// Keys [first, first + count) of the tile, lined up for sums over keys (P::line_up), and transposed
// in panels of kPanel keys ([panel][word][key]) for sums over elements. Either may be null. Rows
// that are missing from a multiple of `multiple` are zeros. buffer: four rows.
template <class P>
HWY_INLINE void pack_keys(const KernelTile& tile, const RowsIn& rows, int64_t first, int64_t count,
                          int64_t multiple, int64_t padded, float factor, typename P::Word* lined,
                          typename P::Word* panels, typename P::Word* buffer) {
  const int64_t depth = words_of<P>(tile.head_dim), words = padded / P::kElements;
  const int64_t whole = round_up(count, multiple);
  for (int64_t four = 0; four < whole; four += 4) {
    // One element to a word: they are lined up as they are.
    typename P::Word* some = P::kElements == 1 && lined != nullptr ? lined + four * padded : buffer;
    for (int64_t j = four; j < min(four + 4, count - kFetchAhead); ++j)
      fetch_row(rows, tile.k_rows[first + j + kFetchAhead], tile.head_dim);
    for (int64_t j = four; j < four + 4; ++j) {
      typename P::Word* row = some + (j - four) * words;
      if (j < count) {
        P::take_row(rows, tile.k_rows[first + j], tile.head_dim, padded, factor, row);
      } else {
        for (int64_t x = 0; x < words; ++x) row[x] = 0;
      }
    }
    if (panels != nullptr)
      transpose_four(some, words, depth, panels + four / kPanel * kPanel * depth + four % kPanel);
    if (P::kElements > 1 && lined != nullptr)
      P::line_up(some, 4, padded, lined + four / P::kElements * padded);
  }
}

// to[0, width) += factor * from.
HWY_INLINE void add_row(float* to, const float* from, float factor, int64_t width) {
  const V by = hn::Set(F(), factor);
  int64_t x = 0;
  for (; x + kLanes <= width; x += kLanes)
    store(hn::MulAdd(load(from + x), by, load(to + x)), to + x);
  for (; x < width; ++x) to[x] += factor * from[x];
}

// A row's scores and what they are weighted with in backward.
struct GradientRow {
  const float *s, *dp;
  const float* slopes;  // of changed scores
  float lse, delta, scale;
  Seen seen;
};
struct Weights {
  V p, ds;
};
// Of the keys [j, j + kLanes).
template <bool kScaled, bool kChanged>
HWY_INLINE Weights weights_of(const GradientRow& row, int64_t j) {
  const F d;
  if (j >= row.seen.to || j + kLanes <= row.seen.from) return {hn::Zero(d), hn::Zero(d)};
  const V lse = hn::Set(d, row.lse), s = load(row.s + j);
  V p = exp_of(kScaled ? hn::Sub(s, lse) : hn::MulSub(s, hn::Set(d, row.scale), lse));
  V ds = hn::Mul(p, hn::Sub(load(row.dp + j), hn::Set(d, row.delta)));
  if (kChanged) ds = hn::Mul(ds, load(row.slopes + j));
  if (j < row.seen.from || j + kLanes > row.seen.to) {
    const auto inside = lanes_in(j, row.seen.from, row.seen.to);
    p = hn::IfThenElse(inside, p, hn::Zero(d));
    ds = hn::IfThenElse(inside, ds, hn::Zero(d));
  }
  return {p, ds};
}

}  // namespace rueda::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_ATTENTION_CPU_BLOCKS_INL_H_

// The loops, compiled once per target: this file includes itself through foreach_target.h with
// another instruction set and namespace each time. No std:: templates here (see targets.h).
#include "collectives/kernels/targets.h"

#include "collectives/kernels/highway_config.h"

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/kernels/targets.cc"
#include "hwy/foreach_target.h"

#include "collectives/kernels/combine-inl.h"
#include "collectives/kernels/formats-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::kernels::HWY_NAMESPACE {

template <class Op, typename Lane>
HWY_INLINE Pair<Lane> prepare(Pair<Lane> x) {
  const Tag<Lane> d;
  return {Op::prepare(d, x.a), Op::prepare(d, x.b)};
}

template <class Op, typename Lane>
HWY_INLINE Pair<Lane> combine(Pair<Lane> so_far, Pair<Lane> next) {
  const Tag<Lane> d;
  return {Op::combine(d, so_far.a, Op::prepare(d, next.a)),
          Op::combine(d, so_far.b, Op::prepare(d, next.b))};
}

template <class Op, typename Lane>
HWY_INLINE Pair<Lane> finish(Pair<Lane> x, Lane factor) {
  const Tag<Lane> d;
  x = {Op::result(d, x.a), Op::result(d, x.b)};
  if constexpr (hwy::IsFloat<Lane>()) {
    const auto scale = hn::Set(d, factor);
    x = {canonical_nan(d, hn::Mul(x.a, scale)), canonical_nan(d, hn::Mul(x.b, scale))};
  }
  return x;
}

// The first `bytes` bytes of a Pair, in stores as wide as the loads that follow. Narrower stores
// cannot be forwarded to a wider load: it would wait until every earlier store has reached the
// cache, also one to a line that another core holds. What lies behind them is anything.
template <class Format>
HWY_INLINE void fill_tail(const std::byte* in, size_t bytes, std::byte* buffer) {
  [[maybe_unused]] constexpr size_t kVector = kVectorBytes<uint32_t>;
  if constexpr (kVector >= 16) {
    if (bytes == 4 || bytes == 8) {
      uint64_t word = 0;
      if (bytes == 4) {
        uint32_t half = 0;
        memcpy(&half, in, 4);
        word = half;
      } else {
        memcpy(&word, in, 8);
      }
      const Tag<uint64_t> d;
      store(d, hn::Set(d, word), buffer);
      if constexpr (Format::kBytes > kVector) store(d, hn::Set(d, word), buffer + kVector);
      return;
    }
  }
#if HWY_TARGET <= HWY_AVX2  // where what is masked out is not touched
  if (bytes % 4 == 0) {
    const Tag<uint32_t> d;
    for (size_t at = 0; at < Format::kBytes; at += kVector) {
      const size_t lanes = at < bytes ? (bytes - at) / 4 : 0;
      const auto mask = hn::FirstN(d, lanes);
      store(d, hn::MaskedLoad(mask, d, reinterpret_cast<const uint32_t*>(in) + at / 4),
            buffer + at);
    }
    return;
  }
#endif
  memcpy(buffer, in, bytes);
}

// The last elements, fewer than fill two pairs, go through a buffer: the same instructions and
// so the same bits, without touching memory beyond the end.
template <class Format, class Op>
HWY_NOINLINE void reduce_tail(const std::byte* const* inputs, size_t n, std::byte* out, size_t at,
                              size_t end, typename Format::Lane factor) {
  while (at < end) {
    const size_t bytes = end - at < Format::kBytes ? end - at : Format::kBytes;
    alignas(64) std::byte buffer[Format::kBytes] = {};
    fill_tail<Format>(inputs[0] + at, bytes, buffer);
    auto sum = prepare<Op>(Format::load_pair(buffer));
    for (size_t k = 1; k < n; ++k) {
      fill_tail<Format>(inputs[k] + at, bytes, buffer);
      sum = combine<Op>(sum, Format::load_pair(buffer));
    }
    Format::save_pair(finish<Op>(sum, factor), buffer);
    memcpy(out + at, buffer, bytes);
    at += bytes;
  }
}

template <class Format, class Op>
void reduce(const std::byte* const* inputs, size_t n, std::byte* out, size_t begin, size_t count,
            double factor_f64) {
  constexpr size_t kPair = Format::kBytes;
  const auto factor = static_cast<typename Format::Lane>(factor_f64);
  size_t at = begin * Format::kSize;
  const size_t end = at + count * Format::kSize;
  for (; end - at >= 2 * kPair; at += 2 * kPair) {
    auto low = prepare<Op>(Format::load_pair(inputs[0] + at));
    auto high = prepare<Op>(Format::load_pair(inputs[0] + at + kPair));
    for (size_t k = 1; k < n; ++k) {
      low = combine<Op>(low, Format::load_pair(inputs[k] + at));
      high = combine<Op>(high, Format::load_pair(inputs[k] + at + kPair));
    }
    Format::save_pair(finish<Op>(low, factor), out + at);
    Format::save_pair(finish<Op>(high, factor), out + at + kPair);
  }
  if (at < end) reduce_tail<Format, Op>(inputs, n, out, at, end, factor);
}

template <class Codec>
void to_f32(const std::byte* in, std::byte* out, size_t count) {
  const Tag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(Tag<float>());
  for (; count >= kLanes; count -= kLanes, in += 2 * kLanes, out += 4 * kLanes) {
    store(d, Codec::widen(d, in), out);
  }
  if (count == 0) return;
  alignas(64) std::byte narrow[2 * kLanes] = {};
  alignas(64) std::byte wide[4 * kLanes];
  memcpy(narrow, in, 2 * count);
  store(d, Codec::widen(d, narrow), wide);
  memcpy(out, wide, 4 * count);
}

template <class Codec>
void from_f32(const std::byte* in, std::byte* out, size_t count) {
  const Tag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(Tag<float>());
  for (; count >= kLanes; count -= kLanes, in += 4 * kLanes, out += 2 * kLanes) {
    Codec::narrow(d, canonical_nan(d, load(d, in)), out);
  }
  if (count == 0) return;
  alignas(64) std::byte wide[4 * kLanes] = {};
  alignas(64) std::byte narrow[2 * kLanes];
  memcpy(wide, in, 4 * count);
  Codec::narrow(d, canonical_nan(d, load(d, wide)), narrow);
  memcpy(out, narrow, 2 * count);
}

using U8 = Plain<uint8_t>;
using U16 = Plain<uint16_t>;
using U32 = Plain<uint32_t>;
using U64 = Plain<uint64_t>;
using F32 = Plain<float>;
using F64 = Plain<double>;

// Numbers as in DType. Signed integers share sums and products with the unsigned of their size;
// complex numbers are added as their parts.
constexpr TargetTable kTable = {
    {
        {reduce<U8, Sum>, reduce<U8, Product>, reduce<U8, IntegerMin>, reduce<U8, IntegerMax>,
         reduce<U8, BitAnd>, reduce<U8, BitOr>, reduce<U8, BitXor>},
        {reduce<U8, Sum>, reduce<U8, Product>, reduce<Plain<int8_t>, IntegerMin>,
         reduce<Plain<int8_t>, IntegerMax>},
        {},
        {reduce<U16, Sum>, reduce<U16, Product>, reduce<Plain<int16_t>, IntegerMin>,
         reduce<Plain<int16_t>, IntegerMax>},
        {reduce<U32, Sum>, reduce<U32, Product>, reduce<Plain<int32_t>, IntegerMin>,
         reduce<Plain<int32_t>, IntegerMax>},
        {reduce<U64, Sum>, reduce<U64, Product>, reduce<Plain<int64_t>, IntegerMin>,
         reduce<Plain<int64_t>, IntegerMax>},
        {reduce<Float16, Sum>, reduce<Float16, Product>, reduce<Float16, FloatMin>,
         reduce<Float16, FloatMax>},
        {reduce<F32, Sum>, reduce<F32, Product>, reduce<F32, FloatMin>, reduce<F32, FloatMax>},
        {reduce<F64, Sum>, reduce<F64, Product>, reduce<F64, FloatMin>, reduce<F64, FloatMax>},
        {reduce<U8, LogicalOr>, reduce<U8, LogicalAnd>, reduce<U8, LogicalAnd>,
         reduce<U8, LogicalOr>, reduce<U8, LogicalAnd>, reduce<U8, LogicalOr>,
         reduce<U8, LogicalXor>},
        {reduce<BFloat16, Sum>, reduce<BFloat16, Product>, reduce<BFloat16, FloatMin>,
         reduce<BFloat16, FloatMax>},
        {},
        {},
        {reduce<U16, Sum>, reduce<U16, Product>, reduce<U16, IntegerMin>, reduce<U16, IntegerMax>},
        {reduce<U32, Sum>, reduce<U32, Product>, reduce<U32, IntegerMin>, reduce<U32, IntegerMax>},
        {reduce<U64, Sum>, reduce<U64, Product>, reduce<U64, IntegerMin>, reduce<U64, IntegerMax>},
    },
    to_f32<Float16Codec>,
    to_f32<BFloat16Codec>,
    from_f32<Float16Codec>,
    from_f32<BFloat16Codec>,
};

}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rueda::kernels {
namespace {

bool always() { return true; }

#if HWY_ARCH_X86
// clang 14 has no word for this feature.
[[maybe_unused]] bool has_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
// Unused where the build's own flags already include the target.
[[maybe_unused]] bool has_sse4() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
         __builtin_cpu_supports("sse4.2");
}
[[maybe_unused]] bool has_avx2() {
  return has_sse4() && __builtin_cpu_supports("avx") && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("fma") && has_f16c();
}
[[maybe_unused]] bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}
#endif

}  // namespace

const Target kCompiledTargets[] = {
    {"portable", always, &HWY_STATIC_DISPATCH(kTable)},
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_SSE4
    {"sse4", has_sse4, &N_SSE4::kTable},
#endif
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_AVX2
    {"avx2", has_avx2, &N_AVX2::kTable},
#endif
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_AVX3
    {"avx512", has_avx512, &N_AVX3::kTable},
#endif
};
const size_t kCompiledTargetCount = sizeof(kCompiledTargets) / sizeof(kCompiledTargets[0]);

}  // namespace rueda::kernels
#endif  // HWY_ONCE

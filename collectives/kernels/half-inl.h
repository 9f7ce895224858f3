// f32 <-> f16 and bf16, one vector at a time, the same bits on every target.
//
// Widening is exact. Narrowing rounds to nearest, ties to even, overflows to infinity and keeps
// denormals. Narrowing expects NaNs to be canonical (canonical_nan), so that none is rounded into
// an infinity.
//
// bf16 is integer arithmetic: Highway 1.0.3 truncates, AVX512-BF16 flushes denormals. f16 uses
// the conversion instructions of AVX2's companion F16C and of AVX-512, else integer arithmetic.
#if defined(RUEDA_KERNELS_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_KERNELS_HALF_INL_H_
#undef RUEDA_KERNELS_HALF_INL_H_
#else
#define RUEDA_KERNELS_HALF_INL_H_
#endif

#include <string.h>

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Unaligned access. Highway's one-lane target dereferences a typed pointer, which alignment and
// aliasing rules forbid here.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> lane;
  memcpy(&lane, from, sizeof lane);
  return hn::Set(d, lane);
#else
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(from));
#endif
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, std::byte* to) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  const hn::TFromD<D> lane = hn::GetLane(v);
  memcpy(to, &lane, sizeof lane);
#else
  hn::StoreU(v, d, reinterpret_cast<hn::TFromD<D>*>(to));
#endif
}

// Every NaN becomes the positive quiet NaN without payload: which operand's payload survives an
// addition depends on operand order in the instruction, which compilers choose freely.
template <class D>
HWY_INLINE hn::Vec<D> canonical_nan(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  using Bits = hn::TFromD<decltype(du)>;
  constexpr Bits kNaN =
      sizeof(Bits) == 4 ? static_cast<Bits>(0x7fc00000u) : static_cast<Bits>(0x7ff8000000000000u);
  return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(du, kNaN)), v);
}

struct BFloat16Codec {
  template <class D>
  static HWY_INLINE hn::Vec<D> widen(D d, const std::byte* from) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> du16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, load(du16, from))));
  }

  // The rounded value in the upper half of each lane; the lower half is leftovers.
  template <class D>
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> round_upper(D d, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> du;
    (void)d;
    const auto bits = hn::BitCast(du, v);
    const auto last_kept_bit = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    return hn::Add(bits, hn::Add(last_kept_bit, hn::Set(du, 0x7fffu)));
  }

  template <class D>
  static HWY_INLINE void narrow(D d, hn::Vec<D> v, std::byte* to) {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> du16;
    const auto lanes = hn::BitCast(di, hn::ShiftRight<16>(round_upper(d, v)));
    store(du16, hn::DemoteTo(du16, lanes), to);
  }
};

struct Float16Codec {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  template <class D>
  static HWY_INLINE hn::Vec<D> widen(D d, const std::byte* from) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, load(df16, from));
  }

  template <class D>
  static HWY_INLINE void narrow(D d, hn::Vec<D> v, std::byte* to) {
    const hn::Rebind<hwy::float16_t, D> df16;
    (void)d;
    store(df16, hn::DemoteTo(df16, v), to);
  }
#else
  // f16 is s eeeee mmmmmmmmmm. Moved to f32's place the exponent lacks the difference of the
  // biases, 127 - 15 = 112.
  template <class D>
  static HWY_INLINE hn::Vec<D> widen(D d, const std::byte* from) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> du16;
    const auto half = hn::PromoteTo(du, load(du16, from));
    const auto magnitude = hn::And(half, hn::Set(du, 0x7fffu));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
    const auto rebias = hn::Set(du, 112u << 23);
    const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
    // Below 2^-14 the value is magnitude * 2^-24; both factors and the product are normal in f32.
    const auto denormal = hn::BitCast(
        du, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24f)));
    const auto special = hn::Add(normal, rebias);  // exponent 31 becomes 255
    const auto quiet = hn::Or(special, hn::Set(du, 0x00400000u));

    const auto ordered = hn::BitCast(di, magnitude);
    auto bits =
        hn::IfThenElse(hn::RebindMask(du, hn::Lt(ordered, hn::Set(di, 0x0400))), denormal, normal);
    bits = hn::IfThenElse(hn::RebindMask(du, hn::Gt(ordered, hn::Set(di, 0x7bff))), special, bits);
    bits = hn::IfThenElse(hn::RebindMask(du, hn::Gt(ordered, hn::Set(di, 0x7c00))), quiet, bits);
    return hn::BitCast(d, hn::Or(bits, sign));
  }

  template <class D>
  static HWY_INLINE void narrow(D d, hn::Vec<D> v, std::byte* to) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> du16;
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
    const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    // Rebias by adding -112 << 23 modulo 2^32, round by adding just under half of the last kept
    // bit, plus one where that bit is odd. A carry into the exponent is right, up to infinity.
    const auto last_kept_bit = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const auto normal =
        hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(last_kept_bit, hn::Set(du, 0xc8000fffu))));
    // Below 2^-14: in 0.5 + x the last bit is worth 2^-24, f16's smallest step, so the addition
    // itself rounds.
    const auto denormal =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f))),
                hn::Set(du, 0x3f000000u));

    const auto ordered = hn::BitCast(di, magnitude);
    auto half = hn::IfThenElse(hn::RebindMask(du, hn::Lt(ordered, hn::Set(di, 0x38800000))),
                               denormal, normal);
    half = hn::IfThenElse(hn::RebindMask(du, hn::Gt(ordered, hn::Set(di, 0x477fffff))),
                          hn::Set(du, 0x7c00u), half);
    half = hn::IfThenElse(hn::RebindMask(du, hn::Gt(ordered, hn::Set(di, 0x7f800000))),
                          hn::Set(du, 0x7e00u), half);
    store(du16, hn::DemoteTo(du16, hn::BitCast(di, hn::Or(half, sign))), to);
  }
#endif
};

}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RUEDA_KERNELS_HALF_INL_H_

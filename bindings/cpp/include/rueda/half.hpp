// Float16 and BFloat16: 16-bit floats as values one can store, send and convert.
//
// They are storage types: arithmetic is done in float. Both conversions from float round to
// nearest, ties to even; values too large become infinity, NaN stays NaN, subnormals are kept.
// Trivial types of two bytes with the layout of IEEE binary16 and of the upper half of binary32, so
// that an array of them is a float16 or bfloat16 tensor.
#ifndef RUEDA_HALF_HPP_
#define RUEDA_HALF_HPP_

#include <bit>
#include <cstdint>

namespace rueda {
inline namespace api1 {

struct BFloat16 {
  std::uint16_t bits = 0;

  constexpr BFloat16() = default;
  explicit constexpr BFloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);  // quiet NaN, sign kept
    } else {
      bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  // By bits: zeros of different sign differ, a NaN equals itself.
  friend constexpr bool operator==(BFloat16, BFloat16) = default;
};

struct Float16 {
  std::uint16_t bits = 0;

  constexpr Float16() = default;
  explicit constexpr Float16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t magnitude = u & 0x7fffffffu;
    std::uint32_t result;
    if (magnitude > 0x7f800000u) {
      result = 0x7e00u;
    } else if (magnitude >= 0x47800000u) {  // 65536 and more
      result = 0x7c00u;
    } else if (magnitude >=
               0x38800000u) {  // normal: rebias the exponent, a carry may reach infinity
      const std::uint32_t rebiased = magnitude - 0x38000000u;
      result = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
    } else if (magnitude <= 0x33000000u) {  // at most half of the smallest subnormal
      result = 0;
    } else {
      const std::uint32_t shift = 126u - (magnitude >> 23);  // 14 to 24
      const std::uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
      const std::uint32_t kept = fraction >> shift;
      const std::uint32_t lost = fraction & ((1u << shift) - 1u);
      const std::uint32_t half = 1u << (shift - 1u);
      result = kept + (lost > half || (lost == half && (kept & 1u) != 0) ? 1u : 0u);
    }
    bits = static_cast<std::uint16_t>(sign | result);
  }
  explicit constexpr operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float
      const float value = static_cast<float>(fraction) * 0x1p-24f;
      return sign != 0 ? -value : value;
    }
    const std::uint32_t rebiased = exponent == 0x1fu ? 0xffu : exponent + 112u;
    return std::bit_cast<float>(sign | (rebiased << 23) | (fraction << 13));
  }
  friend constexpr bool operator==(Float16, Float16) = default;
};

static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2);

}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_HALF_HPP_

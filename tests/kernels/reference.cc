#include "tests/kernels/reference.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace rueda::kernels::reference {
namespace {

// A binary format of 16 bits with `mantissa` stored bits and exponents from `lowest` on.
struct Small {
  int mantissa;
  int lowest;      // exponent of the smallest normal
  double largest;  // finite
  uint16_t infinity;
  uint16_t nan;
};
constexpr Small kF16 = {10, -14, 65504.0, 0x7c00, 0x7e00};
constexpr Small kBf16 = {7, -126, 0x1.fep127, 0x7f80, 0x7fc0};

double decode(const Small& format, uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int magnitude = bits & 0x7fff;
  if (magnitude > format.infinity) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == format.infinity) return sign * std::numeric_limits<double>::infinity();
  const int exponent = magnitude >> format.mantissa;
  const int fraction = magnitude & ((1 << format.mantissa) - 1);
  const int step = format.lowest - format.mantissa;
  if (exponent == 0) return sign * std::ldexp(fraction, step);
  return sign * std::ldexp(fraction + (1 << format.mantissa), step + exponent - 1);
}

uint16_t encode(const Small& format, float value) {
  if (std::isnan(value)) return format.nan;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0.0) return sign;
  if (std::isinf(magnitude)) return sign | format.infinity;
  const int exponent = std::max(std::ilogb(magnitude), format.lowest);
  const double step = std::ldexp(1.0, exponent - format.mantissa);
  const double steps = std::nearbyint(magnitude / step);  // exact division, ties to even
  if (steps * step > format.largest) return sign | format.infinity;
  // Counting representable values: each exponent above the lowest adds 2^mantissa of them.
  const int offset = (exponent - format.lowest) << format.mantissa;
  return static_cast<uint16_t>(sign + offset + static_cast<int>(steps));
}

template <typename Float>
Float combine_floats(ReduceOp op, Float a, Float b) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum: return a + b;
    case ReduceOp::kProduct: return a * b;
    default: break;
  }
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<Float>::quiet_NaN();
  const bool a_is_less = a < b || (a == b && std::signbit(a));
  return a_is_less == (op == ReduceOp::kMin) ? a : b;
}

template <typename Int>
Int combine_integers(ReduceOp op, Int a, Int b) {
  const auto wide_a = static_cast<uint64_t>(a);
  const auto wide_b = static_cast<uint64_t>(b);
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum: return static_cast<Int>(wide_a + wide_b);
    case ReduceOp::kProduct: return static_cast<Int>(wide_a * wide_b);
    case ReduceOp::kMin: return a < b ? a : b;
    case ReduceOp::kMax: return a < b ? b : a;
    case ReduceOp::kBitwiseAnd: return static_cast<Int>(wide_a & wide_b);
    case ReduceOp::kBitwiseOr: return static_cast<Int>(wide_a | wide_b);
    case ReduceOp::kBitwiseXor: return static_cast<Int>(wide_a ^ wide_b);
    case ReduceOp::kAdasum: break;  // not element by element
  }
  throw std::logic_error("unknown reduction");
}

template <typename Float>
Float quiet(Float value) {
  return std::isnan(value) ? std::numeric_limits<Float>::quiet_NaN() : value;
}

template <typename Int>
Int finish_integer(Int value, const Finish& finish) {
  // Wide enough for every value and its sign.
  __extension__ using Wide = __int128;
  const Wide quotient = static_cast<Wide>(value) / finish.divisor;
  if (finish.factor == 1.0) return static_cast<Int>(quotient);
  const double product = std::trunc(static_cast<double>(quotient) * finish.factor);
  if (std::isnan(product)) return 0;
  // long double holds every 64-bit integer exactly.
  const auto exact = static_cast<long double>(product);
  if (exact > std::numeric_limits<Int>::max()) return std::numeric_limits<Int>::max();
  if (exact < std::numeric_limits<Int>::min()) return std::numeric_limits<Int>::min();
  return static_cast<Int>(exact);
}

template <typename T>
T element(const Bytes& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T, typename OfElement>
Bytes map_elements(size_t count, OfElement of_element) {
  Bytes out(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    const T value = of_element(i);
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
  return out;
}

template <typename T>
Bytes reduce_native(ReduceOp op, const std::vector<Bytes>& inputs, const Finish& finish) {
  return map_elements<T>(inputs[0].size() / sizeof(T), [&](size_t i) {
    T value = element<T>(inputs[0], i);
    for (size_t k = 1; k < inputs.size(); ++k) {
      if constexpr (std::is_floating_point_v<T>) {
        value = combine_floats(op, value, element<T>(inputs[k], i));
      } else {
        value = combine_integers(op, value, element<T>(inputs[k], i));
      }
    }
    if constexpr (std::is_floating_point_v<T>) {
      return quiet(finish.factor == 1.0 ? value : value * static_cast<T>(finish.factor));
    } else {
      return finish_integer(value, finish);
    }
  });
}

Bytes reduce_small(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                   const Finish& finish) {
  const bool is_f16 = dtype == DType::kFloat16;
  const auto read = [&](uint16_t bits) {
    return static_cast<float>(is_f16 ? decode_f16(bits) : decode_bf16(bits));
  };
  const auto round = [&](float v) { return is_f16 ? encode_f16(v) : encode_bf16(v); };
  return map_elements<uint16_t>(inputs[0].size() / 2, [&](size_t i) {
    float value = read(element<uint16_t>(inputs[0], i));
    for (size_t k = 1; k < inputs.size(); ++k) {
      value = combine_floats(op, value, read(element<uint16_t>(inputs[k], i)));
    }
    if (finish.factor != 1.0) {
      if (finish.round_first) value = read(round(value));
      value *= static_cast<float>(finish.factor);
    }
    return round(value);
  });
}

Bytes reduce_bool(ReduceOp op, const std::vector<Bytes>& inputs) {
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kAverage ||
                   op == ReduceOp::kBitwiseOr;
  return map_elements<uint8_t>(inputs[0].size(), [&](size_t i) {
    size_t trues = 0;
    for (const Bytes& input : inputs) trues += input[i] != std::byte{0} ? 1 : 0;
    if (op == ReduceOp::kBitwiseXor) return static_cast<uint8_t>(trues % 2);
    return static_cast<uint8_t>(any ? trues > 0 : trues == inputs.size());
  });
}

template <typename Float>
Bytes multiply_complex(const std::vector<Bytes>& inputs, const Finish& finish) {
  const size_t count = inputs[0].size() / sizeof(Float);
  std::vector<Float> out(count);
  for (size_t i = 0; i < count; i += 2) {
    Float real = element<Float>(inputs[0], i), imaginary = element<Float>(inputs[0], i + 1);
    for (size_t k = 1; k < inputs.size(); ++k) {
      const auto c = element<Float>(inputs[k], i), d = element<Float>(inputs[k], i + 1);
      const Float ac = real * c, bd = imaginary * d, ad = real * d, bc = imaginary * c;
      real = ac - bd;
      imaginary = ad + bc;
    }
    out[i] = quiet(real * static_cast<Float>(finish.factor));
    out[i + 1] = quiet(imaginary * static_cast<Float>(finish.factor));
  }
  return map_elements<Float>(count, [&](size_t i) { return out[i]; });
}

template <typename Bits>
Bits special_bits(DType dtype, uint64_t pick) {
  const int exponent_bits = dtype == DType::kFloat16                                ? 5
                            : dtype == DType::kBFloat16 || dtype == DType::kFloat32 ? 8
                                                                                    : 11;
  const int mantissa = static_cast<int>(sizeof(Bits) * 8) - 1 - exponent_bits;
  const Bits one = 1;
  const Bits infinity = static_cast<Bits>(((one << exponent_bits) - 1) << mantissa);
  const Bits sign = static_cast<Bits>((pick & 1) << (sizeof(Bits) * 8 - 1));
  const Bits magnitudes[] = {0,
                             0,
                             infinity,
                             static_cast<Bits>(infinity - 1),                  // largest finite
                             static_cast<Bits>(infinity + 1),                  // signalling NaN
                             static_cast<Bits>(infinity | infinity >> 1 | 5),  // quiet NaN
                             1,                                                // smallest denormal
                             static_cast<Bits>((one << mantissa) - 1),         // largest denormal
                             static_cast<Bits>(one << mantissa),               // smallest normal
                             static_cast<Bits>(infinity / 2),
                             static_cast<Bits>(infinity / 2 + 1)};
  return sign | magnitudes[(pick >> 1) % std::size(magnitudes)];
}

}  // namespace

double decode_f16(uint16_t bits) { return decode(kF16, bits); }
double decode_bf16(uint16_t bits) { return decode(kBf16, bits); }
uint16_t encode_f16(float value) { return encode(kF16, value); }
uint16_t encode_bf16(float value) { return encode(kBf16, value); }

Bytes reduce(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs, const Finish& finish) {
  const bool nothing_to_do =
      inputs.size() == 1 && finish.factor == 1.0 && finish.divisor == 1 && dtype != DType::kBool;
  if (nothing_to_do) return inputs[0];
  switch (dtype) {
    case DType::kBool: return reduce_bool(op, inputs);
    case DType::kUInt8: return reduce_native<uint8_t>(op, inputs, finish);
    case DType::kUInt16: return reduce_native<uint16_t>(op, inputs, finish);
    case DType::kUInt32: return reduce_native<uint32_t>(op, inputs, finish);
    case DType::kUInt64: return reduce_native<uint64_t>(op, inputs, finish);
    case DType::kInt8: return reduce_native<int8_t>(op, inputs, finish);
    case DType::kInt16: return reduce_native<int16_t>(op, inputs, finish);
    case DType::kInt32: return reduce_native<int32_t>(op, inputs, finish);
    case DType::kInt64: return reduce_native<int64_t>(op, inputs, finish);
    case DType::kFloat32: return reduce_native<float>(op, inputs, finish);
    case DType::kFloat64: return reduce_native<double>(op, inputs, finish);
    case DType::kComplex64:
      return op == ReduceOp::kProduct ? multiply_complex<float>(inputs, finish)
                                      : reduce_native<float>(op, inputs, finish);
    case DType::kComplex128:
      return op == ReduceOp::kProduct ? multiply_complex<double>(inputs, finish)
                                      : reduce_native<double>(op, inputs, finish);
    case DType::kFloat16:
    case DType::kBFloat16: return reduce_small(dtype, op, inputs, finish);
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2: break;  // not reduced on the host
  }
  throw std::logic_error("unknown dtype");
}

Bytes random_elements(DType dtype, Pattern pattern, size_t count, std::mt19937_64& random) {
  // Signed, of magnitude in [1, 2); drawn with 53 bits, so that every format rounds.
  const auto near_one = [&] {
    const double magnitude = 1.0 + std::ldexp(static_cast<double>(random() >> 12), -52);
    return (random() & 1) != 0 ? -magnitude : magnitude;
  };
  const bool tame = pattern == Pattern::kTame;
  const bool special = pattern == Pattern::kSpecial;
  if (is_complex(dtype)) return random_elements(component_of(dtype), pattern, 2 * count, random);
  switch (dtype) {
    case DType::kFloat64:
      return map_elements<double>(count, [&](size_t) {
        return tame      ? near_one()
               : special ? std::bit_cast<double>(special_bits<uint64_t>(dtype, random()))
                         : std::bit_cast<double>(random());
      });
    case DType::kFloat32:
      return map_elements<uint32_t>(count, [&](size_t) {
        return tame      ? std::bit_cast<uint32_t>(static_cast<float>(near_one()))
               : special ? special_bits<uint32_t>(dtype, random())
                         : static_cast<uint32_t>(random());
      });
    case DType::kFloat16:
    case DType::kBFloat16:
      return map_elements<uint16_t>(count, [&](size_t) {
        const auto value = static_cast<float>(near_one());
        return tame      ? (dtype == DType::kFloat16 ? encode_f16(value) : encode_bf16(value))
               : special ? special_bits<uint16_t>(dtype, random())
                         : static_cast<uint16_t>(random());
      });
    default: break;
  }
  Bytes out(count * size_of(dtype));
  for (size_t i = 0; i < out.size(); ++i) {
    // Integers: low bytes for tame, 0x00, 0x7f, 0x80, 0xff for special. Bytes of bool are mostly 0
    // or 1 when tame.
    const auto bits = static_cast<uint8_t>(random());
    constexpr uint8_t kExtremes[] = {0x00, 0x7f, 0x80, 0xff};
    const bool low_byte = i % size_of(dtype) == 0;
    const uint8_t value = special ? kExtremes[bits % 4] : tame ? (low_byte ? bits & 1 : 0) : bits;
    out[i] = std::byte{value};
  }
  return out;
}

}  // namespace rueda::kernels::reference

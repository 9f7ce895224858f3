// Reductions by rueda's own kernel, of what NCCL has not: each element of all ranks' inputs, left
// to
// right, with the rounding of docs/numerics.md. One source for the GPU and for the host, where
// tests compare it bit by bit with the CPU's kernels (collectives/kernels).
//
// Idea: a thread per element; the inputs are read once, the accumulator stays in registers. No FMA:
// products and sums are rounded each for itself, so that the GPU has the CPU's bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "collectives/cuda/kernels/items.h"

namespace rueda::cuda::kernels {

// Numbers as in DType and ReduceOp.
enum class Element : int32_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBFloat16 = 10,
  kUInt16 = 13,
  kUInt32 = 14,
  kUInt64 = 15,
  kComplex64 = 16,
  kComplex128 = 17,
};
inline constexpr Element kElements[] = {
    Element::kUInt8,  Element::kInt8,      Element::kInt16,     Element::kInt32,
    Element::kInt64,  Element::kFloat16,   Element::kFloat32,   Element::kFloat64,
    Element::kBool,   Element::kBFloat16,  Element::kUInt16,    Element::kUInt32,
    Element::kUInt64, Element::kComplex64, Element::kComplex128};
enum class Combine : int32_t {
  kAverage = 0,
  kSum = 1,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kAnd = 6,
  kOr = 7,
  kXor = 8
};

// out[i] = finish(x0[i] op x1[i] op ...), where x_r = round(in_r * prescale). Rank `rank`'s input
// is `own`, rank r's lies at `others` + r * stride bytes; out may be own.
struct Combination {
  const void* own = nullptr;
  const void* others = nullptr;
  void* out = nullptr;
  int64_t stride = 0;
  int64_t count = 0;  // elements
  int32_t rank = 0;
  int32_t size = 1;
  Element element = Element::kFloat32;
  Combine op = Combine::kSum;
  double prescale = 1;
  // As kernels::Finish.
  double factor = 1;
  int64_t divisor = 1;
  int32_t round_first = 0;
};

template <typename To, typename From>
RUEDA_BOTH_SIDES inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

RUEDA_BOTH_SIDES inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
RUEDA_BOTH_SIDES inline double multiply(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
RUEDA_BOTH_SIDES inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
RUEDA_BOTH_SIDES inline double add(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

RUEDA_BOTH_SIDES inline float canonical(float value) {
  return value == value ? value : bits_as<float>(uint32_t{0x7fc00000});
}
RUEDA_BOTH_SIDES inline double canonical(double value) {
  return value == value ? value : bits_as<double>(uint64_t{0x7ff8000000000000});
}

// A NaN in either gives NaN, -0 is less than +0 (collectives/kernels/combine-inl.h).
template <typename Float>
RUEDA_BOTH_SIDES inline Float smaller(Float a, Float b) {
  using Bits = std::conditional_t<sizeof(Float) == 4, uint32_t, uint64_t>;
  return bits_as<Float>(
      static_cast<Bits>(bits_as<Bits>(a < b ? a : b) | bits_as<Bits>(b < a ? b : a)));
}

template <typename Float>
RUEDA_BOTH_SIDES inline Float combine_floats(Combine op, Float a, Float b) {
  switch (op) {
    case Combine::kMin: return smaller(a, b);
    case Combine::kMax: return -smaller(-a, -b);
    case Combine::kProduct: return multiply(a, b);
    default: return add(a, b);
  }
}

// ---- formats: Stored lies in memory, Value is what is combined

template <typename T>
struct WholeNumber {
  using Stored = T;
  using Value = T;
  RUEDA_BOTH_SIDES static Value load(Stored stored) { return stored; }
  // Truncated toward zero, limited to what T holds; a NaN product gives 0.
  RUEDA_BOTH_SIDES static Value scale(Value value, double factor) {
    constexpr int kUnused = 64 - 8 * static_cast<int>(sizeof(T)) + std::is_signed_v<T>;
    constexpr T kLargest = static_cast<T>(~uint64_t{0} >> kUnused);
    constexpr T kLowest = std::is_signed_v<T> ? static_cast<T>(-kLargest - 1) : T{0};
    constexpr double kAbove = 2.0 * static_cast<double>(kLargest / 2 + 1);  // 2^bits
    const double product = multiply(static_cast<double>(value), factor);
    if (product >= kAbove) return kLargest;
    if (product <= static_cast<double>(kLowest)) return kLowest;
    return product == product ? static_cast<T>(product) : T{0};
  }
  RUEDA_BOTH_SIDES static Value combine(Combine op, Value a, Value b) {
    switch (op) {
      case Combine::kMin: return b < a ? b : a;
      case Combine::kMax: return a < b ? b : a;
      // Modulo 2^64, of which the lower bits are the wrapped result.
      case Combine::kProduct:
        return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      case Combine::kAnd: return static_cast<T>(a & b);
      case Combine::kOr: return static_cast<T>(a | b);
      case Combine::kXor: return static_cast<T>(a ^ b);
      default: return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    }
  }
  RUEDA_BOTH_SIDES static Stored finish(Value value, const Combination& c) {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    if (c.divisor != 1)
      value = static_cast<T>(static_cast<Wide>(value) / static_cast<Wide>(c.divisor));
    return c.factor == 1 ? value : scale(value, c.factor);
  }
};

struct Truth {
  using Stored = uint8_t;
  using Value = uint8_t;
  RUEDA_BOTH_SIDES static Value load(Stored stored) { return stored != 0 ? 1 : 0; }
  RUEDA_BOTH_SIDES static Value scale(Value value, double) { return value; }
  RUEDA_BOTH_SIDES static Value combine(Combine op, Value a, Value b) {
    switch (op) {
      case Combine::kMin:
      case Combine::kProduct:
      case Combine::kAnd: return a & b;
      case Combine::kXor: return a ^ b;
      default: return a | b;
    }
  }
  RUEDA_BOTH_SIDES static Stored finish(Value value, const Combination&) { return value; }
};

template <typename Float>
struct RealNumber {
  using Stored = Float;
  using Value = Float;
  RUEDA_BOTH_SIDES static Value load(Stored stored) { return stored; }
  RUEDA_BOTH_SIDES static Value scale(Value value, double factor) {
    return canonical(multiply(value, static_cast<Float>(factor)));
  }
  RUEDA_BOTH_SIDES static Value combine(Combine op, Value a, Value b) {
    return combine_floats(op, a, b);
  }
  RUEDA_BOTH_SIDES static Stored finish(Value value, const Combination& c) {
    if (c.size == 1 && c.factor == 1) return value;  // a copy
    return scale(value, c.factor);
  }
};

// Combined in f32.
struct Half {
  static RUEDA_BOTH_SIDES float widen(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;
    if (magnitude < 0x0400) {
      const float small = multiply(static_cast<float>(magnitude), 0x1p-24f);
      return bits_as<float>(bits_as<uint32_t>(small) | sign);
    }
    uint32_t wide = (magnitude << 13) + (112u << 23);
    if (magnitude >= 0x7c00) wide += 112u << 23;
    if (magnitude > 0x7c00) wide |= 0x00400000u;
    return bits_as<float>(wide | sign);
  }
  // Nearest, ties to even; NaNs are canonical.
  static RUEDA_BOTH_SIDES uint16_t narrow(float value) {
    const auto bits = bits_as<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = (bits ^ magnitude) >> 16;
    uint32_t half = (magnitude + (magnitude >> 13 & 1u) + 0xc8000fffu) >> 13;
    if (magnitude < 0x38800000u)
      half = bits_as<uint32_t>(add(bits_as<float>(magnitude), 0.5f)) - 0x3f000000u;
    if (magnitude > 0x477fffffu) half = 0x7c00u;
    if (magnitude > 0x7f800000u) half = 0x7e00u;
    return static_cast<uint16_t>(half | sign);
  }
};
struct Brain {
  static RUEDA_BOTH_SIDES float widen(uint16_t bits) {
    return bits_as<float>(static_cast<uint32_t>(bits) << 16);
  }
  static RUEDA_BOTH_SIDES uint16_t narrow(float value) {
    const auto bits = bits_as<uint32_t>(value);
    return static_cast<uint16_t>((bits + (bits >> 16 & 1u) + 0x7fffu) >> 16);
  }
};
template <typename Codec>
struct ShortNumber {
  using Stored = uint16_t;
  // The bits beside: a copy keeps those of a NaN.
  struct Value {
    float wide;
    uint16_t bits;
  };
  RUEDA_BOTH_SIDES static Value load(Stored stored) { return {Codec::widen(stored), stored}; }
  RUEDA_BOTH_SIDES static Stored scaled(float value, double factor) {
    return Codec::narrow(canonical(multiply(value, static_cast<float>(factor))));
  }
  RUEDA_BOTH_SIDES static Value scale(Value value, double factor) {
    return load(scaled(value.wide, factor));
  }
  RUEDA_BOTH_SIDES static Value combine(Combine op, Value a, Value b) {
    return {combine_floats(op, a.wide, b.wide), 0};
  }
  RUEDA_BOTH_SIDES static Stored finish(Value value, const Combination& c) {
    if (c.size == 1 && c.factor == 1) return value.bits;
    if (c.round_first == 0 || c.factor == 1) return scaled(value.wide, c.factor);
    return scaled(Codec::widen(scaled(value.wide, 1)), c.factor);
  }
};

template <typename Float>
struct ComplexNumber {
  struct alignas(2 * sizeof(Float)) Value {
    Float real;
    Float imaginary;
  };
  using Stored = Value;
  RUEDA_BOTH_SIDES static Value load(Stored stored) { return stored; }
  RUEDA_BOTH_SIDES static Value scale(Value value, double factor) {
    using Part = RealNumber<Float>;
    return {Part::scale(value.real, factor), Part::scale(value.imaginary, factor)};
  }
  RUEDA_BOTH_SIDES static Value combine(Combine op, Value a, Value b) {
    if (op != Combine::kProduct) return {add(a.real, b.real), add(a.imaginary, b.imaginary)};
    return {add(multiply(a.real, b.real), -multiply(a.imaginary, b.imaginary)),
            add(multiply(a.real, b.imaginary), multiply(a.imaginary, b.real))};
  }
  RUEDA_BOTH_SIDES static Stored finish(Value value, const Combination& c) {
    if (c.size == 1 && c.factor == 1) return value;
    return scale(value, c.factor);
  }
};

// Element i of the result.
template <typename Format>
RUEDA_BOTH_SIDES inline void combine_one(const Combination& c, int64_t i) {
  using Stored = typename Format::Stored;
  using Value = typename Format::Value;
  const auto prepared = [&](int32_t rank) {
    const auto* from = static_cast<const unsigned char*>(c.others) + rank * c.stride;
    const auto* in = static_cast<const Stored*>(rank == c.rank ? c.own : from);
    const Value value = Format::load(in[i]);
    return c.prescale == 1 ? value : Format::scale(value, c.prescale);
  };
  Value sum = prepared(0);
  for (int32_t rank = 1; rank < c.size; ++rank) sum = Format::combine(c.op, sum, prepared(rank));
  static_cast<Stored*>(c.out)[i] = Format::finish(sum, c);
}

// Calls act(Format{}) for the element's format. False: there is none.
template <typename Act>
bool with_format(Element element, Act act) {
  switch (element) {
    case Element::kUInt8: return act(WholeNumber<uint8_t>{}), true;
    case Element::kInt8: return act(WholeNumber<int8_t>{}), true;
    case Element::kUInt16: return act(WholeNumber<uint16_t>{}), true;
    case Element::kInt16: return act(WholeNumber<int16_t>{}), true;
    case Element::kUInt32: return act(WholeNumber<uint32_t>{}), true;
    case Element::kInt32: return act(WholeNumber<int32_t>{}), true;
    case Element::kUInt64: return act(WholeNumber<uint64_t>{}), true;
    case Element::kInt64: return act(WholeNumber<int64_t>{}), true;
    case Element::kBool: return act(Truth{}), true;
    case Element::kFloat16: return act(ShortNumber<Half>{}), true;
    case Element::kBFloat16: return act(ShortNumber<Brain>{}), true;
    case Element::kFloat32: return act(RealNumber<float>{}), true;
    case Element::kFloat64: return act(RealNumber<double>{}), true;
    case Element::kComplex64: return act(ComplexNumber<float>{}), true;
    case Element::kComplex128: return act(ComplexNumber<double>{}), true;
  }
  return false;
}

}  // namespace rueda::cuda::kernels

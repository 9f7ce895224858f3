// Arithmetic of the stub of NCCL: every type by way of double, int64 by itself. Slow and plain.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "collectives/kernels/kernels.h"
#include "collectives/nccl/functions.h"

namespace rueda::stub {

using nccl::Op;
using nccl::Type;

inline DType dtype_of(Type type) {
  switch (type) {
    case Type::kInt8: return DType::kInt8;
    case Type::kUInt8: return DType::kUInt8;
    case Type::kInt32: return DType::kInt32;
    case Type::kUInt32: return DType::kUInt32;
    case Type::kInt64: return DType::kInt64;
    case Type::kUInt64: return DType::kUInt64;
    case Type::kFloat16: return DType::kFloat16;
    case Type::kFloat32: return DType::kFloat32;
    case Type::kFloat64: return DType::kFloat64;
    case Type::kBFloat16: return DType::kBFloat16;
    case Type::kFloat8E4M3: return DType::kFloat8E4M3;
    case Type::kFloat8E5M2: return DType::kFloat8E5M2;
  }
  std::abort();
}

inline size_t bytes_of(Type type) { return size_of(dtype_of(type)); }

template <typename T>
double load(const void* from, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(from) + index * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

// OCP's 8-bit floats by their definition; no NaN, as tests have none.
inline double float8_value(Type type, uint8_t bits) {
  const bool wide = type == Type::kFloat8E5M2;
  const int mantissa = wide ? 2 : 3;
  const int bias = wide ? 15 : 7;
  const int exponent = (bits & 0x7f) >> mantissa;
  const int fraction = bits & ((1 << mantissa) - 1);
  const double value = exponent == 0
                           ? std::ldexp(fraction, 1 - bias - mantissa)
                           : std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
  return (bits & 0x80) != 0 ? -value : value;
}

// Nearest, ties to even, as all finite numbers of a sign are in the order of their bits; saturates.
inline uint8_t float8_bits(Type type, double value) {
  const int largest = type == Type::kFloat8E5M2 ? 0x7b : 0x7e;
  const double size = std::fabs(value);
  int below = 0;
  while (below < largest && float8_value(type, static_cast<uint8_t>(below + 1)) <= size) ++below;
  if (below < largest) {
    const double down = size - float8_value(type, static_cast<uint8_t>(below));
    const double up = float8_value(type, static_cast<uint8_t>(below + 1)) - size;
    if (up < down || (up == down && below % 2 == 1)) ++below;
  }
  return static_cast<uint8_t>(below | (value < 0 ? 0x80 : 0));
}

inline double read(Type type, const void* from, size_t index) {
  switch (type) {
    case Type::kInt8: return load<int8_t>(from, index);
    case Type::kUInt8: return load<uint8_t>(from, index);
    case Type::kInt32: return load<int32_t>(from, index);
    case Type::kUInt32: return load<uint32_t>(from, index);
    case Type::kInt64: return load<int64_t>(from, index);
    case Type::kUInt64: return load<uint64_t>(from, index);
    case Type::kFloat32: return load<float>(from, index);
    case Type::kFloat64: return load<double>(from, index);
    case Type::kFloat16:
    case Type::kBFloat16: {
      float wide = 0;
      kernels::convert_to_f32(dtype_of(type), static_cast<const std::byte*>(from) + index * 2,
                              &wide, 1);
      return wide;
    }
    case Type::kFloat8E4M3:
    case Type::kFloat8E5M2: {
      uint8_t bits;
      std::memcpy(&bits, static_cast<const std::byte*>(from) + index, 1);
      return float8_value(type, bits);
    }
  }
  std::abort();
}

inline void write(Type type, void* to, size_t index, double value) {
  const auto put = [&](auto typed) {
    std::memcpy(static_cast<std::byte*>(to) + index * sizeof(typed), &typed, sizeof(typed));
  };
  switch (type) {
    case Type::kInt8: return put(static_cast<int8_t>(static_cast<int64_t>(value)));
    case Type::kUInt8: return put(static_cast<uint8_t>(static_cast<int64_t>(value)));
    case Type::kInt32: return put(static_cast<int32_t>(static_cast<int64_t>(value)));
    case Type::kUInt32: return put(static_cast<uint32_t>(static_cast<int64_t>(value)));
    case Type::kInt64: return put(static_cast<int64_t>(value));
    case Type::kUInt64: return put(static_cast<uint64_t>(value));
    case Type::kFloat32: return put(static_cast<float>(value));
    case Type::kFloat64: return put(value);
    case Type::kFloat16:
    case Type::kBFloat16: {
      const auto wide = static_cast<float>(value);
      kernels::convert_from_f32(dtype_of(type), &wide, static_cast<std::byte*>(to) + index * 2, 1);
      return;
    }
    case Type::kFloat8E4M3:
    case Type::kFloat8E5M2: return put(float8_bits(type, value));
  }
}

// A reduction under way.
class Sum {
 public:
  Sum(Type type, Op op, double factor, size_t count)
      : type_(type), op_(op), factor_(factor), values_(count), begun_(count, false) {}
  void add(const std::byte* data, size_t at, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const double value = read(type_, data, i) * factor_;
      double& sum = values_[at + i];
      if (!begun_[at + i]) {
        sum = value;
        begun_[at + i] = true;
      } else {
        sum = op_ == nccl::kProd  ? sum * value
              : op_ == nccl::kMax ? std::max(sum, value)
              : op_ == nccl::kMin ? std::min(sum, value)
                                  : sum + value;
      }
    }
  }
  void store(void* to, size_t begin, size_t count, int size) const {
    for (size_t i = 0; i < count; ++i)
      write(type_, to, i, op_ == nccl::kAvg ? values_[begin + i] / size : values_[begin + i]);
  }

 private:
  Type type_;
  Op op_;
  double factor_;
  std::vector<double> values_;
  std::vector<bool> begun_;
};

}  // namespace rueda::stub

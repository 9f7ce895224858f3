// Inputs whose reductions are exact in every dtype, so that equality may be asked; and scalars of
// every dtype.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "collectives/base/types.h"
#include "collectives/kernels/kernels.h"

namespace rueda::testing {

using Bytes = std::vector<std::byte>;

// Values of a dtype as doubles and back; exact for the small whole numbers used here.
inline Bytes to_bytes(DType dtype, const std::vector<double>& values) {
  Bytes bytes(values.size() * size_of(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte* at = bytes.data() + i * size_of(dtype);
    const auto put = [&](auto value) { std::memcpy(at, &value, sizeof(value)); };
    const auto half = [&] {
      const auto value = static_cast<float>(values[i]);
      kernels::convert_from_f32(dtype, &value, at, 1);
    };
    switch (dtype) {
      case DType::kBool: put(static_cast<uint8_t>(values[i] != 0)); break;
      case DType::kUInt8: put(static_cast<uint8_t>(static_cast<int64_t>(values[i]))); break;
      case DType::kUInt16: put(static_cast<uint16_t>(static_cast<int64_t>(values[i]))); break;
      case DType::kUInt32: put(static_cast<uint32_t>(static_cast<int64_t>(values[i]))); break;
      case DType::kUInt64: put(static_cast<uint64_t>(static_cast<int64_t>(values[i]))); break;
      case DType::kInt8: put(static_cast<int8_t>(values[i])); break;
      case DType::kInt16: put(static_cast<int16_t>(values[i])); break;
      case DType::kInt32: put(static_cast<int32_t>(values[i])); break;
      case DType::kInt64: put(static_cast<int64_t>(values[i])); break;
      case DType::kFloat16:
      case DType::kBFloat16: half(); break;
      case DType::kFloat32: put(static_cast<float>(values[i])); break;
      case DType::kFloat64: put(values[i]); break;
      // Real numbers: what is reduced here is then a real number too, products as well.
      case DType::kComplex64: put(std::complex(static_cast<float>(values[i]))); break;
      case DType::kComplex128: put(std::complex(values[i])); break;
      case DType::kFloat8E4M3:
      case DType::kFloat8E5M2: break;  // not reduced on the host
    }
  }
  return bytes;
}

// The elementwise and bitwise reductions that a dtype has.
inline std::vector<ReduceOp> ops_of(DType dtype) {
  std::vector<ReduceOp> ops;
  for (const ReduceOp op : kElementwiseOps)
    if (has_reduction(dtype, op)) ops.push_back(op);
  for (const ReduceOp op : kBitwiseOps)
    if (has_reduction(dtype, op)) ops.push_back(op);
  return ops;
}

// Element i of rank's input: small whole numbers, different for every rank and neighbour. Products
// of eight of them and sums of eight stay exact in bfloat16 and inside int8.
inline double ramp(Rank rank, int64_t i, ReduceOp op) {
  const int64_t mixed = (i * 7 + rank * 3 + i / 5) % 13;
  if (op == ReduceOp::kProduct) return (mixed % 3 == 0 && rank < 3) ? 2 : 1;
  return static_cast<double>(mixed);
}

inline std::vector<double> ramp_values(Rank rank, int64_t count, ReduceOp op) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values.push_back(ramp(rank, i, op));
  return values;
}

// What the reduction of everybody's ramp must give, computed in doubles (exact), averages rounded
// as promised.
inline std::vector<double> reduced_ramp(DType dtype, ReduceOp op, Rank size, int64_t count) {
  std::vector<double> result;
  result.reserve(static_cast<size_t>(count));
  const auto bits = [](double value) { return static_cast<int64_t>(value); };
  for (int64_t i = 0; i < count; ++i) {
    double value = ramp(0, i, op);
    if (dtype == DType::kBool) value = value != 0;
    for (Rank rank = 1; rank < size; ++rank) {
      double next = ramp(rank, i, op);
      if (dtype == DType::kBool) next = next != 0;
      switch (op) {
        case ReduceOp::kSum:
        case ReduceOp::kAverage: value += next; break;
        case ReduceOp::kMin: value = std::min(value, next); break;
        case ReduceOp::kMax: value = std::max(value, next); break;
        case ReduceOp::kProduct: value *= next; break;
        case ReduceOp::kBitwiseAnd: value = static_cast<double>(bits(value) & bits(next)); break;
        case ReduceOp::kBitwiseOr: value = static_cast<double>(bits(value) | bits(next)); break;
        case ReduceOp::kBitwiseXor: value = static_cast<double>(bits(value) ^ bits(next)); break;
        case ReduceOp::kAdasum: break;  // not element by element
      }
    }
    if (dtype == DType::kBool) value = value != 0;
    if (op == ReduceOp::kAverage) {
      if (is_integer(dtype))
        value = std::trunc(value / size);
      else if (dtype == DType::kFloat64 || dtype == DType::kComplex128)
        value *= 1.0 / size;
      else
        value = static_cast<double>(static_cast<float>(value) * static_cast<float>(1.0 / size));
    }
    result.push_back(value);
  }
  return result;
}

}  // namespace rueda::testing

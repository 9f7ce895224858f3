#include "collectives/nccl/reduction.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

namespace rueda::nccl {
namespace {

std::optional<Type> type_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8: return Type::kUInt8;
    case DType::kInt8: return Type::kInt8;
    case DType::kInt16: return std::nullopt;
    case DType::kInt32: return Type::kInt32;
    case DType::kInt64: return Type::kInt64;
    case DType::kFloat16: return Type::kFloat16;
    case DType::kBFloat16: return Type::kBFloat16;
    case DType::kFloat32: return Type::kFloat32;
    case DType::kFloat64: return Type::kFloat64;
  }
  return std::nullopt;
}

Op op_of(DType dtype, ReduceOp op) {
  const bool is_bool = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kMin: return kMin;
    case ReduceOp::kMax: return kMax;
    case ReduceOp::kProduct: return is_bool ? kMin : kProd;
    default: return is_bool ? kMax : kSum;
  }
}

// 11 bits of precision with exponents from -24 (denormals) to 15; bfloat16 has float's exponents.
bool is_half(double value) {
  return std::isfinite(value) && std::abs(value) <= 65504 &&
         std::nearbyint(std::ldexp(value, 24)) == std::ldexp(value, 24) &&
         (value == 0 || std::nearbyint(std::ldexp(value, 10 - std::ilogb(value))) ==
                            std::ldexp(value, 10 - std::ilogb(value)));
}

bool is_bfloat(double value) {
  const auto narrow = static_cast<float>(value);
  return narrow == value && (std::bit_cast<uint32_t>(narrow) & 0xffff) == 0;
}

uint16_t half_bits(double value) {  // of one that is_half
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double size = std::abs(value);
  if (size < std::ldexp(1.0, -14)) return static_cast<uint16_t>(sign | int(std::ldexp(size, 24)));
  const int exponent = std::ilogb(size);
  const int fraction = static_cast<int>(std::ldexp(size, 10 - exponent)) - 1024;
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | fraction);
}

Status refuse(const std::string& what, const std::string& instead) {
  return {rueda::Code::kUnimplemented, what + " on GPUs; " + instead};
}

}  // namespace

Result<Reduction> plan_reduction(DType dtype, ReduceOp op, double prescale, double factor,
                                 int64_t divisor, Rank size) {
  const std::string name = name_of(dtype);
  const auto type = type_of(dtype);
  if (!type) return refuse("NCCL has no " + name + ", so there is no such reduction", "use int32");
  if (op == ReduceOp::kAdasum)
    return refuse("Adasum is not available", "copy the tensor to the host (tensor.cpu())");
  Reduction plan{*type, op_of(dtype, op), 1.0};
  if (!is_floating(dtype)) {
    if (prescale != 1 || factor != 1 || divisor != 1) {
      return refuse("the average and scales of " + name + " are not available",
                    "use op=Sum and divide, or copy the tensor to the host");
    }
    return plan;
  }
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  if (op == ReduceOp::kAverage && prescale == 1 && factor == 1.0 / size) {
    plan.op = kAvg;
    return plan;
  }
  plan.factor = prescale * factor;
  if (plan.factor == 1) return plan;
  if (!adds) {
    return refuse(std::string("scales of ") + name_of(op) + " are not available",
                  "scale the tensor before or after");
  }
  const bool fits = *type == Type::kFloat16    ? is_half(plan.factor)
                    : *type == Type::kBFloat16 ? is_bfloat(plan.factor)
                                               : true;
  if (!fits) {
    return refuse("a factor that is no " + name + " number (" + std::to_string(plan.factor) +
                      ") is not available",
                  "use a power of two, or scale the tensor before or after");
  }
  return plan;
}

void write_factor(Type type, double factor, void* to) {
  const auto put = [to](auto value) { std::memcpy(to, &value, sizeof(value)); };
  if (type == Type::kFloat64) return put(factor);
  const auto narrow = static_cast<float>(factor);
  if (type == Type::kFloat32) return put(narrow);
  if (type == Type::kBFloat16)
    return put(static_cast<uint16_t>(std::bit_cast<uint32_t>(narrow) >> 16));
  put(half_bits(factor));
}

}  // namespace rueda::nccl

#include "collectives/nccl/reduction.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "collectives/kernels/kernels.h"
#include "collectives/nccl/library.h"

namespace rueda::nccl {
namespace {

std::optional<Type> type_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8: return Type::kUInt8;
    case DType::kInt8: return Type::kInt8;
    case DType::kUInt16:
    case DType::kInt16: return std::nullopt;
    case DType::kUInt32: return Type::kUInt32;
    case DType::kInt32: return Type::kInt32;
    case DType::kUInt64: return Type::kUInt64;
    case DType::kInt64: return Type::kInt64;
    case DType::kFloat16: return Type::kFloat16;
    case DType::kBFloat16: return Type::kBFloat16;
    case DType::kFloat32: return Type::kFloat32;
    case DType::kFloat64: return Type::kFloat64;
    case DType::kFloat8E4M3: return Type::kFloat8E4M3;
    case DType::kFloat8E5M2: return Type::kFloat8E5M2;
    case DType::kComplex64:
    case DType::kComplex128: break;  // by their parts
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

// A factor of a 16-bit dtype, rounded as the CPU side rounds it.
uint16_t bits_of(DType dtype, double factor) {
  const auto narrow = static_cast<float>(factor);
  uint16_t bits = 0;
  kernels::convert_from_f32(dtype, &narrow, reinterpret_cast<std::byte*>(&bits), 1);
  return bits;
}

// Finite, and no bit of it is lost.
bool is_number_of(DType dtype, double factor) {
  const uint16_t bits = bits_of(dtype, factor);
  float wide = 0;
  kernels::convert_to_f32(dtype, reinterpret_cast<const std::byte*>(&bits), &wide, 1);
  return std::isfinite(factor) && wide == factor;
}

Status refuse(const std::string& what, const std::string& instead) {
  return {Code::kUnimplemented, what + " on GPUs; " + instead};
}

}  // namespace

Result<Reduction> plan_reduction(DType dtype, ReduceOp op, double prescale, double factor,
                                 int64_t divisor, Rank size) {
  const std::string name = name_of(dtype);
  if (is_complex(dtype)) {
    if (op == ReduceOp::kProduct)
      return refuse("NCCL has no product of " + name + ", so there is no such reduction",
                    "copy the tensor to the host");
    RUEDA_ASSIGN_OR_RETURN(
        Reduction plan, plan_reduction(component_of(dtype), op, prescale, factor, divisor, size));
    plan.parts = 2;
    return plan;
  }
  const auto type = type_of(dtype);
  if (!type) return refuse("NCCL has no " + name + ", so there is no such reduction", "use int32");
  if (is_bitwise(op))
    return refuse(std::string("NCCL has no ") + name_of(op), "copy the tensor to the host");
  Reduction plan{*type, 1, op_of(dtype, op), 1.0};
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
  if (is_float8(dtype)) {
    return refuse("scales of " + name + " are not available",
                  "scale the tensor before or after, or reduce it as bfloat16");
  }
  if (size_of(dtype) == 2 && !is_number_of(dtype, plan.factor)) {
    return refuse("a factor that is no " + name + " number (" + std::to_string(plan.factor) +
                      ") is not available",
                  "use a power of two, or scale the tensor before or after");
  }
  return plan;
}

Status check_reduction(Type type, int version, int capability) {
  if (type != Type::kFloat8E4M3 && type != Type::kFloat8E5M2) return {};
  if (version >= kFloat8Version && capability >= kFloat8Capability) return {};
  return refuse(
      "8-bit floats are reduced by NCCL 2.24 and newer, where every GPU has compute capability "
      "9.0 (here: NCCL " +
          version_text(version) + ", " + std::to_string(capability / 10) + "." +
          std::to_string(capability % 10) + "), so there is no such reduction",
      "reduce the tensor as bfloat16");
}

void write_factor(Type type, double factor, void* to) {
  const auto put = [to](auto value) { std::memcpy(to, &value, sizeof(value)); };
  if (type == Type::kFloat64) return put(factor);
  if (type == Type::kFloat32) return put(static_cast<float>(factor));
  put(bits_of(type == Type::kBFloat16 ? DType::kBFloat16 : DType::kFloat16, factor));
}

}  // namespace rueda::nccl

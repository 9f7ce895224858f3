#include "collectives/base/types.h"

#include <algorithm>

namespace rueda {

bool is_valid(DType dtype) {
  return std::find(std::begin(kAllDTypes), std::end(kAllDTypes), dtype) != std::end(kAllDTypes);
}

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2: return 1;
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kUInt32:
    case DType::kInt32:
    case DType::kFloat32: return 4;
    case DType::kUInt64:
    case DType::kInt64:
    case DType::kFloat64:
    case DType::kComplex64: return 8;
    case DType::kComplex128: return 16;
  }
  return 0;
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "bool";
    case DType::kUInt8: return "uint8";
    case DType::kUInt16: return "uint16";
    case DType::kUInt32: return "uint32";
    case DType::kUInt64: return "uint64";
    case DType::kInt8: return "int8";
    case DType::kInt16: return "int16";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kFloat8E4M3: return "float8_e4m3fn";
    case DType::kFloat8E5M2: return "float8_e5m2";
    case DType::kComplex64: return "complex64";
    case DType::kComplex128: return "complex128";
  }
  return "unknown dtype";
}

bool is_floating(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64 || is_float8(dtype);
}

bool is_float8(DType dtype) { return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2; }

bool is_integer(DType dtype) {
  return is_valid(dtype) && !is_floating(dtype) && !is_complex(dtype) && dtype != DType::kBool;
}

bool is_complex(DType dtype) { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }

DType component_of(DType dtype) {
  return dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
}

bool is_bitwise(ReduceOp op) {
  return std::find(std::begin(kBitwiseOps), std::end(kBitwiseOps), op) != std::end(kBitwiseOps);
}

bool is_valid(ReduceOp op) {
  return op == ReduceOp::kAdasum || is_bitwise(op) ||
         std::find(std::begin(kElementwiseOps), std::end(kElementwiseOps), op) !=
             std::end(kElementwiseOps);
}

bool has_reduction(DType dtype, ReduceOp op) {
  if (is_bitwise(op)) return is_integer(dtype) || dtype == DType::kBool;
  if (op == ReduceOp::kAdasum) return is_floating(dtype) && !is_float8(dtype);
  if (dtype == DType::kBool) return op != ReduceOp::kAverage;
  return !is_complex(dtype) || (op != ReduceOp::kMin && op != ReduceOp::kMax);
}

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage: return "average";
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAdasum: return "adasum";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kBitwiseAnd: return "bitwise and";
    case ReduceOp::kBitwiseOr: return "bitwise or";
    case ReduceOp::kBitwiseXor: return "bitwise xor";
  }
  return "unknown op";
}

bool is_valid(CollectiveKind kind) {
  return static_cast<uint8_t>(kind) <= static_cast<uint8_t>(CollectiveKind::kScatter);
}

bool has_tensor(CollectiveKind kind) {
  return kind != CollectiveKind::kBarrier && kind != CollectiveKind::kJoin &&
         kind != CollectiveKind::kProcessSet;
}

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllreduce: return "allreduce";
    case CollectiveKind::kAllgather: return "allgather";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kReducescatter: return "reducescatter";
    case CollectiveKind::kAlltoall: return "alltoall";
    case CollectiveKind::kBarrier: return "barrier";
    case CollectiveKind::kJoin: return "join";
    case CollectiveKind::kProcessSet: return "process_set";
    case CollectiveKind::kSend: return "send";
    case CollectiveKind::kRecv: return "recv";
    case CollectiveKind::kReduce: return "reduce";
    case CollectiveKind::kGather: return "gather";
    case CollectiveKind::kScatter: return "scatter";
  }
  return "unknown collective";
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

int64_t elements_per_row(const Shape& shape) {
  int64_t count = 1;
  for (size_t i = 1; i < shape.size(); ++i) count *= shape[i];
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ',';
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string describe(DType dtype, const Shape& shape) { return name_of(dtype) + to_string(shape); }

int64_t split_rows(int64_t rows, Rank rank, Rank size) {
  return rows / size + (rank < rows % size ? 1 : 0);
}

int64_t split_begin(int64_t rows, Rank rank, Rank size) {
  return rows / size * rank + std::min<int64_t>(rank, rows % size);
}

}  // namespace rueda

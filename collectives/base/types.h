// The words every layer shares: Rank, DType, ReduceOp, CollectiveKind, and spans of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rueda {

using Rank = int32_t;

// Memory that somebody else owns. A ByteView is read, a ByteSpan is written.
using ByteView = std::span<const std::byte>;
using ByteSpan = std::span<std::byte>;

// Element types. The numbers are part of the C ABI and of the wire: never change one, only append.
enum class DType : uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,  // one byte; 0 is false, anything else true; results are 0 or 1
  kBFloat16 = 10,
  kFloat8E4M3 =
      11,  // OCP's E4M3 without infinities ("fn"); moved everywhere, reduced by NCCL alone
  kFloat8E5M2 = 12,
  kUInt16 = 13,
  kUInt32 = 14,
  kUInt64 = 15,
  kComplex64 = 16,  // two float32: the real part, then the imaginary one
  kComplex128 = 17,
};
// Those that the CPU side can reduce; and all.
inline constexpr DType kHostReducedDTypes[] = {
    DType::kBool,     DType::kUInt8,   DType::kUInt16,  DType::kUInt32,    DType::kUInt64,
    DType::kInt8,     DType::kInt16,   DType::kInt32,   DType::kInt64,     DType::kFloat16,
    DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kComplex64, DType::kComplex128};
inline constexpr DType kAllDTypes[] = {
    DType::kBool,      DType::kUInt8,     DType::kUInt16,  DType::kUInt32,     DType::kUInt64,
    DType::kInt8,      DType::kInt16,     DType::kInt32,   DType::kInt64,      DType::kFloat16,
    DType::kBFloat16,  DType::kFloat32,   DType::kFloat64, DType::kFloat8E4M3, DType::kFloat8E5M2,
    DType::kComplex64, DType::kComplex128};

bool is_valid(DType dtype);
size_t size_of(DType dtype);       // bytes per element
const char* name_of(DType dtype);  // "float32"
bool is_floating(DType dtype);     // f16, bf16, f32, f64, the 8-bit ones
bool is_float8(DType dtype);
bool is_integer(DType dtype);  // signed or not; not bool
bool is_complex(DType dtype);
DType component_of(DType dtype);  // float32 of complex64, float64 of complex128

// Reductions. On bool: sum and max are or, product and min are and; average is refused.
// min and max of floats: a NaN in any input gives NaN. Complex numbers have sum, average, product.
// kAdasum is of whole vectors (collectives/algorithms/adasum.h), of floats, of allreduce alone.
// The bitwise ones (MPI_BAND, MPI_BOR, MPI_BXOR) are of integers and bool, where they are logical.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kBitwiseAnd = 6,
  kBitwiseOr = 7,
  kBitwiseXor = 8
};
// Those that combine element by element.
inline constexpr ReduceOp kElementwiseOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                                               ReduceOp::kMax, ReduceOp::kProduct};
inline constexpr ReduceOp kBitwiseOps[] = {ReduceOp::kBitwiseAnd, ReduceOp::kBitwiseOr,
                                           ReduceOp::kBitwiseXor};
bool is_bitwise(ReduceOp op);
bool is_valid(ReduceOp op);
bool has_reduction(DType dtype, ReduceOp op);  // whether it is defined; somebody may reduce it
const char* name_of(ReduceOp op);              // "sum"

// What a rank asks for. Numbers are part of the C ABI and of the wire.
enum class CollectiveKind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kReducescatter = 3,
  kAlltoall = 4,
  kBarrier = 5,
  kSend = 6,
  kRecv = 7,
  kJoin = 8,        // takes part in everything with neutral elements until all ranks have joined
  kProcessSet = 9,  // adds or removes a process set
  // Of ordered groups alone: the result is the root's, or comes from it.
  kReduce = 10,
  kGather = 11,
  kScatter = 12,
};
bool is_valid(CollectiveKind kind);
bool has_tensor(CollectiveKind kind);
constexpr bool is_point_to_point(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
}
const char* name_of(CollectiveKind kind);  // "allreduce"

// Extents of a dense row-major tensor; {} is zero-dimensional (one element).
using Shape = std::vector<int64_t>;
int64_t element_count(const Shape& shape);     // 1 for {}
int64_t elements_per_row(const Shape& shape);  // product of all but the first extent; 1 for {}
std::string to_string(const Shape& shape);     // "[128,64]"
std::string describe(DType dtype, const Shape& shape);  // "float32[128,64]"

// Rows of a dim-0 split as Horovod and NumPy's array_split cut it: the first (rows mod size) parts
// have one more.
int64_t split_rows(int64_t rows, Rank rank, Rank size);
int64_t split_begin(int64_t rows, Rank rank, Rank size);

}  // namespace rueda

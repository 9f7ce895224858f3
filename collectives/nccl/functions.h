// NCCL's calls that rueda makes, with its types as nccl.h declares them, so that rueda is built
// without NCCL. tests/cuda/headers_test.cc compares them with nccl.h where it is.
#pragma once

#include <climits>
#include <cstddef>

#include "collectives/cuda/functions.h"

struct ncclComm;
struct ncclWindow_vidmem;

namespace rueda::nccl {

using ResultCode = int;                      // ncclResult_t
using Handle = ncclComm*;                    // ncclComm_t
using SymmetricHandle = ncclWindow_vidmem*;  // ncclWindow_t
using Stream = cuda::StreamHandle;

inline constexpr ResultCode kSuccess = 0;
inline constexpr ResultCode kInProgress = 7;

enum class Type : int {  // ncclDataType_t
  kInt8 = 0,
  kUInt8 = 1,
  kInt32 = 2,
  kUInt32 = 3,
  kInt64 = 4,
  kUInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
  kFloat8E4M3 = 10,  // 2.24
  kFloat8E5M2 = 11,
};
inline constexpr int kFloat8Version = 22400;  // and compute capability 9.0
inline constexpr int kFloat8Capability = 90;

// ncclRedOp_t. A number: factors that are made at run time have numbers of their own.
using Op = int;
inline constexpr Op kSum = 0;
inline constexpr Op kProd = 1;
inline constexpr Op kMax = 2;
inline constexpr Op kMin = 3;
inline constexpr Op kAvg = 4;
inline constexpr int kScalarOnHost = 1;  // ncclScalarHostImmediate
inline constexpr int kNoColor = -1;      // NCCL_SPLIT_NOCOLOR
inline constexpr int kSymmetric = 1;     // NCCL_WIN_COLL_SYMMETRIC

struct UniqueId {
  char bytes[128];
};

// ncclConfig_t as of 2.18; newer libraries take what is missing from their defaults, older ones
// leave the end out. Its last four bytes were padding then; newer ones read their traffic class
// there.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
};
static_assert(sizeof(Config) == 48);

// X(member, symbol, result, arguments). Needed: NCCL 2.14 has them all.
#define RUEDA_NCCL_NEEDED(X)                                                                     \
  X(get_version, ncclGetVersion, ResultCode, (int* version))                                     \
  X(get_unique_id, ncclGetUniqueId, ResultCode, (UniqueId * id))                                 \
  X(error_string, ncclGetErrorString, const char*, (ResultCode code))                            \
  X(init_rank, ncclCommInitRankConfig, ResultCode,                                               \
    (Handle * comm, int size, UniqueId id, int rank, Config* config))                            \
  X(abort, ncclCommAbort, ResultCode, (Handle comm))                                             \
  X(destroy, ncclCommDestroy, ResultCode, (Handle comm))                                         \
  X(async_error, ncclCommGetAsyncError, ResultCode, (Handle comm, ResultCode * error))           \
  X(group_start, ncclGroupStart, ResultCode, ())                                                 \
  X(group_end, ncclGroupEnd, ResultCode, ())                                                     \
  X(all_reduce, ncclAllReduce, ResultCode,                                                       \
    (const void* in, void* out, size_t count, Type type, Op op, Handle comm, Stream stream))     \
  X(reduce, ncclReduce, ResultCode,                                                              \
    (const void* in, void* out, size_t count, Type type, Op op, int root, Handle comm,           \
     Stream stream))                                                                             \
  X(broadcast, ncclBroadcast, ResultCode,                                                        \
    (const void* in, void* out, size_t count, Type type, int root, Handle comm, Stream stream))  \
  X(reduce_scatter, ncclReduceScatter, ResultCode,                                               \
    (const void* in, void* out, size_t out_count, Type type, Op op, Handle comm, Stream stream)) \
  X(all_gather, ncclAllGather, ResultCode,                                                       \
    (const void* in, void* out, size_t in_count, Type type, Handle comm, Stream stream))         \
  X(send, ncclSend, ResultCode,                                                                  \
    (const void* in, size_t count, Type type, int peer, Handle comm, Stream stream))             \
  X(recv, ncclRecv, ResultCode,                                                                  \
    (void* out, size_t count, Type type, int peer, Handle comm, Stream stream))

// Null where the library does not have them; rueda then does without.
#define RUEDA_NCCL_OPTIONAL(X)                                                     \
  X(last_error, ncclGetLastError, const char*, (Handle comm)) /* 2.13 */           \
  X(make_pre_mul_sum, ncclRedOpCreatePreMulSum, ResultCode,   /* 2.11 */           \
    (Op * op, void* factor, Type type, int residence, Handle comm))                \
  X(destroy_op, ncclRedOpDestroy, ResultCode, (Op op, Handle comm)) /* 2.11 */     \
  X(split, ncclCommSplit, ResultCode,                               /* 2.18 */     \
    (Handle comm, int color, int key, Handle* made, Config* config))               \
  X(mem_alloc, ncclMemAlloc, ResultCode, (void** memory, size_t bytes)) /* 2.19 */ \
  X(mem_free, ncclMemFree, ResultCode, (void* memory))                  /* 2.19 */ \
  X(register_memory, ncclCommRegister, ResultCode,                      /* 2.19 */ \
    (Handle comm, void* memory, size_t bytes, void** handle))                      \
  X(deregister_memory, ncclCommDeregister, ResultCode, /* 2.19 */                  \
    (Handle comm, void* handle))                                                   \
  X(register_window, ncclCommWindowRegister, ResultCode, /* 2.27 */                \
    (Handle comm, void* memory, size_t bytes, SymmetricHandle* window, int flags)) \
  X(deregister_window, ncclCommWindowDeregister, ResultCode, /* 2.27 */            \
    (Handle comm, SymmetricHandle window))

struct Functions {
#define RUEDA_X(member, symbol, result, arguments) result(*member) arguments = nullptr;
  RUEDA_NCCL_NEEDED(RUEDA_X)
  RUEDA_NCCL_OPTIONAL(RUEDA_X)
#undef RUEDA_X
};

}  // namespace rueda::nccl

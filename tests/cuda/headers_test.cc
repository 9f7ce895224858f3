// Our own declarations of CUDA's and NCCL's types against the real headers, where they are: the
// same number of arguments, each as large and of the same sort, and the same numbers.
#include <type_traits>

#include "collectives/cuda/functions.h"
#include "collectives/nccl/functions.h"

#ifdef HAVE_CUDA_H
#include <cuda.h>

namespace {

template <typename Mine, typename Theirs>
constexpr bool same() {
  return sizeof(Mine) == sizeof(Theirs) && alignof(Mine) == alignof(Theirs) &&
         std::is_pointer_v<Mine> == std::is_pointer_v<Theirs> &&
         std::is_class_v<Mine> == std::is_class_v<Theirs> &&
         std::is_floating_point_v<Mine> == std::is_floating_point_v<Theirs>;
}

template <typename Mine, typename Theirs>
struct Fits : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct Fits<R (*)(A...), S (*)(B...)> {
  template <bool kCounts>
  static constexpr bool all() {
    if constexpr (kCounts)
      return same<R, S>() && (same<A, B>() && ...);
    else
      return false;
  }
  static constexpr bool value = all<sizeof...(A) == sizeof...(B)>();
};

#define RUEDA_X(member, symbol, arguments) \
  static_assert(Fits<decltype(rueda::cuda::Functions::member), decltype(&symbol)>::value, #symbol);
RUEDA_CUDA_FUNCTIONS(RUEDA_X)
#undef RUEDA_X
static_assert(rueda::cuda::kSuccess == CUDA_SUCCESS &&
              rueda::cuda::kNoDevice == CUDA_ERROR_NO_DEVICE &&
              rueda::cuda::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(rueda::cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING &&
              rueda::cuda::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(std::is_same_v<rueda::cuda::StreamHandle, CUstream>);
static_assert(rueda::cuda::kCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
              rueda::cuda::kCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);

}  // namespace

#ifdef HAVE_NCCL_H
#include <nccl.h>

namespace {

namespace mine = rueda::nccl;

#define RUEDA_X(member, symbol, result, arguments) \
  static_assert(Fits<decltype(mine::Functions::member), decltype(&symbol)>::value, #symbol);
RUEDA_NCCL_NEEDED(RUEDA_X)
RUEDA_NCCL_OPTIONAL(RUEDA_X)
#undef RUEDA_X
static_assert(static_cast<int>(mine::Type::kInt8) == ncclInt8 &&
              static_cast<int>(mine::Type::kUInt8) == ncclUint8 &&
              static_cast<int>(mine::Type::kInt32) == ncclInt32 &&
              static_cast<int>(mine::Type::kUInt32) == ncclUint32 &&
              static_cast<int>(mine::Type::kInt64) == ncclInt64 &&
              static_cast<int>(mine::Type::kUInt64) == ncclUint64 &&
              static_cast<int>(mine::Type::kFloat16) == ncclFloat16 &&
              static_cast<int>(mine::Type::kFloat32) == ncclFloat32 &&
              static_cast<int>(mine::Type::kFloat64) == ncclFloat64 &&
              static_cast<int>(mine::Type::kBFloat16) == ncclBfloat16);
#if NCCL_VERSION_CODE >= 22400
static_assert(static_cast<int>(mine::Type::kFloat8E4M3) == ncclFloat8e4m3 &&
              static_cast<int>(mine::Type::kFloat8E5M2) == ncclFloat8e5m2);
#endif
static_assert(mine::kSum == ncclSum && mine::kProd == ncclProd && mine::kMax == ncclMax &&
              mine::kMin == ncclMin && mine::kAvg == ncclAvg &&
              mine::kScalarOnHost == ncclScalarHostImmediate &&
              mine::kInProgress == ncclInProgress);
#ifdef NCCL_SPLIT_NOCOLOR
static_assert(mine::kNoColor == NCCL_SPLIT_NOCOLOR);
#endif
static_assert(offsetof(mine::Config, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(mine::Config, net_name) == offsetof(ncclConfig_t, netName) &&
              offsetof(mine::Config, split_share) == offsetof(ncclConfig_t, splitShare) &&
              sizeof(mine::Config) <= sizeof(ncclConfig_t));
#if NCCL_VERSION_CODE >= 22700
static_assert(mine::kSymmetric == NCCL_WIN_COLL_SYMMETRIC);
static_assert(offsetof(mine::Config, traffic_class) == offsetof(ncclConfig_t, trafficClass) &&
              mine::Config{}.traffic_class == NCCL_CONFIG_UNDEF_INT);
#endif

}  // namespace
#endif
#endif

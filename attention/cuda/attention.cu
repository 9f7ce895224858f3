// The part of librueda_cuda.so that is for attention: launches of the block kernel and of merges.
#include <cuda_runtime.h>

#include "attention/cuda/backward.h"
#include "attention/cuda/forward.h"
#include "attention/cuda/merge.h"

namespace rueda::attention::cuda {
namespace {

template <template <typename, typename, int, int> class Pass, typename Element, int kRows,
          int kWidth>
__global__ void __launch_bounds__(kThreads) run_items(const __grid_constant__ Call call) {
  extern __shared__ float memory[];
  using Run = Pass<DeviceBlock, Element, kRows, kWidth>;
  Run::run(DeviceBlock{}, call, call.items[blockIdx.x], blockIdx.z, blockIdx.y,
           *reinterpret_cast<typename Run::Shared*>(memory));
}

template <template <typename, typename, int, int> class Pass, typename Element, int kRows,
          int kWidth>
int launch(const Call& call, int64_t heads, cudaStream_t stream) {
  if (call.item_count == 0 || heads == 0 || call.batches == 0) return 0;
  if (heads > 65535 || call.batches > 65535 || call.item_count > 0x7fffffff)
    return cudaErrorInvalidValue;
  const auto kernel = run_items<Pass, Element, kRows, kWidth>;
  constexpr int kBytes = sizeof(typename Pass<DeviceBlock, Element, kRows, kWidth>::Shared);
  static_assert(kBytes <= 99 * 1024, "more shared memory than every GPU has");
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(call.item_count), static_cast<unsigned>(heads),
                  static_cast<unsigned>(call.batches));
  kernel<<<grid, kThreads, kBytes, stream>>>(call);
  return cudaGetLastError();
}

template <template <typename, typename, int, int> class Pass, bool kBackward, typename Element>
int launch_width(const Call& call, int64_t heads, cudaStream_t stream) {
  if (call.head_dim < 1 || call.head_dim > 256) return cudaErrorInvalidValue;
  if (call.head_dim <= 64)
    return launch<Pass, Element, rows_for(64, kBackward), 64>(call, heads, stream);
  if (call.head_dim <= 128)
    return launch<Pass, Element, rows_for(128, kBackward), 128>(call, heads, stream);
  return launch<Pass, Element, rows_for(256, kBackward), 256>(call, heads, stream);
}

template <template <typename, typename, int, int> class Pass, bool kBackward>
int launch_format(const Call& call, int64_t heads, void* stream) {
  const auto to = static_cast<cudaStream_t>(stream);
  switch (call.format) {
    case Format::kFloat32: return launch_width<Pass, kBackward, float>(call, heads, to);
    case Format::kFloat16: return launch_width<Pass, kBackward, Half>(call, heads, to);
    case Format::kBFloat16: return launch_width<Pass, kBackward, Brain>(call, heads, to);
  }
  return cudaErrorInvalidValue;
}

int forward(const Call* call, void* stream) {
  return launch_format<Forward, false>(*call, call->heads, stream);
}
int backward_queries(const Call* call, void* stream) {
  return launch_format<BackwardQueries, true>(*call, call->heads, stream);
}
int backward_keys(const Call* call, void* stream) {
  return launch_format<BackwardKeys, true>(*call, call->kv_heads, stream);
}

constexpr int kMergeWarps = 8;
enum class Work { kMerge, kAdd, kFinish };

// A warp to kAtOnce rows of a head.
template <typename Element, Work kWork>
__global__ void __launch_bounds__(kMergeWarps * 32)
    run_rows(const __grid_constant__ MergeCall call) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kMergeWarps + threadIdx.x / 32;
  if (group >= groups_of(call)) return;
  const Jobs jobs = jobs_of(call, blockIdx.y, static_cast<uint32_t>(group));
  const int lane = threadIdx.x % 32;
  if constexpr (kWork == Work::kMerge) {
    const Merged merged = merge_parts<Element>(call, jobs, lane, 32);
    __syncwarp();
    if (lane == 0) merge_end(call, jobs, merged);
  } else if constexpr (kWork == Work::kAdd) {
    add_parts<Element>(call, jobs, lane, 32);
  } else {
    const Numbers lse = finish_parts<Element>(call, jobs, lane, 32);
    __syncwarp();
    if (lane == 0) finish_end(call, jobs, lse);
  }
}

template <Work kWork>
int launch_rows(const MergeCall* call, void* stream) {
  const int64_t groups = groups_of(*call);
  if (groups == 0 || call->batches == 0) return 0;
  if (groups > 0xffffffffLL || call->batches > 65535) return cudaErrorInvalidValue;
  constexpr int kBlock = kMergeWarps * 32;
  const dim3 grid(static_cast<unsigned>((groups + kMergeWarps - 1) / kMergeWarps),
                  static_cast<unsigned>(call->batches));
  const auto to = static_cast<cudaStream_t>(stream);
  switch (call->format) {
    case Format::kFloat32: run_rows<float, kWork><<<grid, kBlock, 0, to>>>(*call); break;
    case Format::kFloat16: run_rows<Half, kWork><<<grid, kBlock, 0, to>>>(*call); break;
    case Format::kBFloat16: run_rows<Brain, kWork><<<grid, kBlock, 0, to>>>(*call); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

int32_t block_rows(int32_t head_dim, int32_t backward) { return rows_for(head_dim, backward != 0); }

const char* explain(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

const AttentionFunctions functions = {kAttentionVersion,
                                      block_rows,
                                      forward,
                                      backward_queries,
                                      backward_keys,
                                      launch_rows<Work::kMerge>,
                                      launch_rows<Work::kAdd>,
                                      launch_rows<Work::kFinish>,
                                      explain};

}  // namespace
}  // namespace rueda::attention::cuda

extern "C" __attribute__((visibility("default"))) const rueda::attention::cuda::AttentionFunctions*
rueda_cuda_attention(uint32_t version) {
  return version == rueda::attention::cuda::kAttentionVersion ? &rueda::attention::cuda::functions
                                                              : nullptr;
}

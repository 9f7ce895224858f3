// Batched copies with scale and cast: one thread block for each item (items.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "collectives/cuda/kernels/functions.h"

namespace rueda::cuda::kernels {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;  // loads of a thread before its first store: memory answers late

// A thread's access: 16 bytes of the wider of the two, so that a warp's accesses lie without gaps.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
};

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float widen(__nv_fp8_e4m3 value) { return static_cast<float>(value); }
__device__ inline float widen(__nv_fp8_e5m2 value) { return static_cast<float>(value); }

template <typename T>
__device__ T narrow(float value) {
  return T(value);
}
template <>
__device__ inline __half narrow<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// The same bits where nothing is to be done.
template <typename From, typename To>
__device__ To convert(From value, float factor) {
  if constexpr (std::is_same_v<From, To>) {
    if (factor == 1.0f) return value;
  }
  return narrow<To>(widen(value) * factor);
}
template <>
__device__ inline uint8_t convert<uint8_t, uint8_t>(uint8_t value, float) {
  return value;
}

template <typename T>
__device__ bool is_aligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % alignof(T) == 0;
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    copy_items(const __grid_constant__ Table table, float factor) {
  constexpr int kCount =
      16 / static_cast<int>(sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  using In = Vector<From, kCount>;
  using Out = Vector<To, kCount>;
  const Item item = find(table, blockIdx.x);
  const Copy& tensor = table.tensors[item.tensor];
  const From* const from = static_cast<const From*>(tensor.from) + item.begin;
  To* const to = static_cast<To*>(tensor.to) + item.begin;
  const int count = static_cast<int>(item.count);
  int done = 0;
  if (is_aligned<In>(from) && is_aligned<Out>(to)) {
    const In* const source = reinterpret_cast<const In*>(from);
    Out* const target = reinterpret_cast<Out*>(to);
    const auto put = [&](int i, const In& in) {
      Out out;
#pragma unroll
      for (int k = 0; k < kCount; ++k) out.values[k] = convert<From, To>(in.values[k], factor);
      target[i] = out;
    };
    const int vectors = count / kCount;
    int i = threadIdx.x;
    for (; i + (kInFlight - 1) * kThreads < vectors; i += kInFlight * kThreads) {
      In in[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) in[k] = source[i + k * kThreads];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) put(i + k * kThreads, in[k]);
    }
    for (; i < vectors; i += kThreads) put(i, source[i]);
    done = vectors * kCount;
  }
  for (int i = done + threadIdx.x; i < count; i += kThreads)
    to[i] = convert<From, To>(from[i], factor);
}

}  // namespace rueda::cuda::kernels

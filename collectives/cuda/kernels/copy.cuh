// Batched copies with scale and cast: one thread block for each item (items.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "collectives/cuda/kernels/functions.h"

namespace rueda::cuda::kernels {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements of a thread's access: 16 bytes of 16-bit numbers

template <typename T>
struct alignas(sizeof(T) * kVector < 16 ? sizeof(T) * kVector : 16) Vector {
  T values[kVector];
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
__device__ bool is_aligned(const T* at) {
  return reinterpret_cast<uintptr_t>(at) % alignof(Vector<T>) == 0;
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) copy_items(const __grid_constant__ Table table, float factor) {
  const Item item = find(table, blockIdx.x);
  const Copy& tensor = table.tensors[item.tensor];
  const From* const from = static_cast<const From*>(tensor.from) + item.begin;
  To* const to = static_cast<To*>(tensor.to) + item.begin;
  int64_t done = 0;
  if (is_aligned(from) && is_aligned(to)) {
    const int64_t vectors = item.count / kVector;
    for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
      const Vector<From> in = reinterpret_cast<const Vector<From>*>(from)[i];
      Vector<To> out;
#pragma unroll
      for (int k = 0; k < kVector; ++k) out.values[k] = convert<From, To>(in.values[k], factor);
      reinterpret_cast<Vector<To>*>(to)[i] = out;
    }
    done = vectors * kVector;
  }
  for (int64_t i = done + threadIdx.x; i < item.count; i += kThreads)
    to[i] = convert<From, To>(from[i], factor);
}

}  // namespace rueda::cuda::kernels

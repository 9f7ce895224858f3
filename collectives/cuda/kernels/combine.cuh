// The kernel of combine.h: threads stride over the elements.
#pragma once

#include "collectives/cuda/kernels/combine.h"

namespace rueda::cuda::kernels {

constexpr int kCombineThreads = 256;

template <typename Format>
__global__ void __launch_bounds__(kCombineThreads)
    combine_elements(const __grid_constant__ Combination combination) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kCombineThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x;
       i < combination.count; i += stride)
    combine_one<Format>(combination, i);
}

}  // namespace rueda::cuda::kernels

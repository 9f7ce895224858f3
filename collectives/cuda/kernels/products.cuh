// Adasum's dot products: a.b, a.a and b.b in f64; and its weighted sums, as
// collectives/kernels/adasum.cc has them. Which number is added when depends on its index alone, so
// the same vectors give the same bits on every GPU and every time.
#pragma once

#include <cstdint>

namespace rueda::cuda::kernels {

constexpr int kProductThreads = 256;
constexpr int64_t kPartElements = 65536;  // of a thread block

inline int64_t product_parts(int64_t count) { return (count + kPartElements - 1) / kPartElements; }

// The sums of all threads of a block, in thread 0, by halves.
__device__ inline void add_up(double (&sums)[3]) {
  __shared__ double shared[3][kProductThreads];
  for (int k = 0; k < 3; ++k) shared[k][threadIdx.x] = sums[k];
  __syncthreads();
  for (int step = kProductThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      for (int k = 0; k < 3; ++k) shared[k][threadIdx.x] += shared[k][threadIdx.x + step];
    }
    __syncthreads();
  }
  for (int k = 0; k < 3; ++k) sums[k] = shared[k][0];
}

__global__ void part_products(const float* a, const float* b, int64_t count, double* parts) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kPartElements;
  const int64_t end = begin + kPartElements < count ? begin + kPartElements : count;
  double sums[3] = {0, 0, 0};
  for (int64_t i = begin + threadIdx.x; i < end; i += kProductThreads) {
    const double x = a[i];
    const double y = b[i];
    sums[0] += x * y;
    sums[1] += x * x;
    sums[2] += y * y;
  }
  add_up(sums);
  if (threadIdx.x < 3)
    parts[3 * static_cast<int64_t>(blockIdx.x) + threadIdx.x] = sums[threadIdx.x];
}

__global__ void add_products(const double* parts, int64_t count, double* result) {
  double sums[3] = {0, 0, 0};
  for (int64_t i = threadIdx.x; i < count; i += kProductThreads) {
    for (int k = 0; k < 3; ++k) sums[k] += parts[3 * i + k];
  }
  add_up(sums);
  if (threadIdx.x < 3) result[threadIdx.x] = sums[threadIdx.x];
}

// A vector whose squared norm is below sqrt(smallest normal f64) counts as orthogonal to the other.
__device__ inline double adasum_weight(int own, int ranks, double dot, double norm) {
  constexpr double kNothing = 0x1p-511;
  const double share = static_cast<double>(own) / static_cast<double>(ranks);
  return norm < kNothing ? 1.0 : 1.0 - __dmul_rn(share, dot) / norm;
}

__global__ void add_weighted(float* a, const float* b, int64_t count, const double* products,
                             int a_ranks, int b_ranks) {
  const double wa = adasum_weight(a_ranks, a_ranks + b_ranks, products[0], products[1]);
  const double wb = adasum_weight(b_ranks, a_ranks + b_ranks, products[0], products[2]);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kProductThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kProductThreads + threadIdx.x; i < count;
       i += stride)
    a[i] = static_cast<float>(__dadd_rn(__dmul_rn(a[i], wa), __dmul_rn(b[i], wb)));
}

}  // namespace rueda::cuda::kernels

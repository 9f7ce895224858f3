// librueda_cuda.so: the only part of rueda that is compiled by nvcc. Carries CUDA's runtime library
// inside; works in the primary context, which is the current one of the calling thread.
#include <cuda_runtime.h>

#include <type_traits>

#include "collectives/cuda/kernels/combine.cuh"
#include "collectives/cuda/kernels/copy.cuh"
#include "collectives/cuda/kernels/int8.cuh"
#include "collectives/cuda/kernels/products.cuh"

namespace rueda::cuda::kernels {
namespace {

constexpr int kNotSupported = cudaErrorNotSupported;

template <typename From, typename To>
int launch_copy(const Table& table, float factor, cudaStream_t stream) {
  const uint32_t items = table.first[table.count];
  if (items == 0) return 0;
  copy_items<From, To><<<items, kThreads, 0, stream>>>(table, factor);
  return cudaGetLastError();
}

template <typename From>
int copy_from(const Table& table, Format to, float factor, cudaStream_t stream) {
  switch (to) {
    case Format::kFloat32: return launch_copy<From, float>(table, factor, stream);
    case Format::kFloat16: return launch_copy<From, __half>(table, factor, stream);
    case Format::kBFloat16: return launch_copy<From, __nv_bfloat16>(table, factor, stream);
    case Format::kFloat8E4M3: return launch_copy<From, __nv_fp8_e4m3>(table, factor, stream);
    case Format::kFloat8E5M2: return launch_copy<From, __nv_fp8_e5m2>(table, factor, stream);
    case Format::kBytes: break;
  }
  return kNotSupported;
}

int copy(const Table* table, Format from, Format to, float factor, cudaStream_t stream) {
  switch (from) {
    case Format::kFloat32: return copy_from<float>(*table, to, factor, stream);
    case Format::kFloat16: return copy_from<__half>(*table, to, factor, stream);
    case Format::kBFloat16: return copy_from<__nv_bfloat16>(*table, to, factor, stream);
    case Format::kFloat8E4M3: return copy_from<__nv_fp8_e4m3>(*table, to, factor, stream);
    case Format::kFloat8E5M2: return copy_from<__nv_fp8_e5m2>(*table, to, factor, stream);
    case Format::kBytes:
      if (to != Format::kBytes || factor != 1.0f) return kNotSupported;
      return launch_copy<uint8_t, uint8_t>(*table, factor, stream);
  }
  return kNotSupported;
}

int quantize(const float* from, int8_t* to, int64_t blocks, cudaStream_t stream) {
  if (blocks == 0) return 0;
  quantize_blocks<<<int8_grid(blocks), kBlocksAtOnce * 32, 0, stream>>>(from, to, blocks);
  return cudaGetLastError();
}

int dequantize(const int8_t* from, float* to, int64_t blocks, cudaStream_t stream) {
  if (blocks == 0) return 0;
  dequantize_blocks<<<int8_grid(blocks), kBlocksAtOnce * 32, 0, stream>>>(from, to, blocks);
  return cudaGetLastError();
}

int products(const float* a, const float* b, int64_t count, double* scratch, double* result,
             cudaStream_t stream) {
  const int64_t parts = product_parts(count);
  if (parts > 0)
    part_products<<<static_cast<unsigned>(parts), kProductThreads, 0, stream>>>(a, b, count,
                                                                                scratch);
  add_products<<<1, kProductThreads, 0, stream>>>(scratch, parts, result);
  return cudaGetLastError();
}

int weighted_sum(float* a, const float* b, int64_t count, const double* products, int32_t a_ranks,
                 int32_t b_ranks, cudaStream_t stream) {
  if (count == 0) return 0;
  const int64_t blocks = (count + kProductThreads - 1) / kProductThreads;
  add_weighted<<<static_cast<unsigned>(blocks < 65536 ? blocks : 65536), kProductThreads, 0,
                 stream>>>(a, b, count, products, a_ranks, b_ranks);
  return cudaGetLastError();
}

int combine(const Combination* combination, cudaStream_t stream) {
  if (combination->count == 0) return 0;
  const int64_t blocks = (combination->count + kCombineThreads - 1) / kCombineThreads;
  const auto grid = static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
  const bool known = with_format(combination->element, [&](auto format) {
    combine_elements<decltype(format)><<<grid, kCombineThreads, 0, stream>>>(*combination);
  });
  return known ? cudaGetLastError() : kNotSupported;
}

// Loads them, too: a kernel that is loaded at its first launch may wait for what the GPU is doing,
// and that may be a collective which waits for a peer that waits for us.
int probe() {
  cudaFuncAttributes attributes;
  const void* const used[] = {
      reinterpret_cast<const void*>(copy_items<float, float>),
      reinterpret_cast<const void*>(copy_items<__nv_bfloat16, __nv_bfloat16>),
      reinterpret_cast<const void*>(copy_items<uint8_t, uint8_t>),
      reinterpret_cast<const void*>(quantize_blocks),
      reinterpret_cast<const void*>(dequantize_blocks),
      reinterpret_cast<const void*>(part_products),
      reinterpret_cast<const void*>(add_products),
      reinterpret_cast<const void*>(add_weighted),
      reinterpret_cast<const void*>(copy_items<__half, float>),
      reinterpret_cast<const void*>(copy_items<float, __half>),
      reinterpret_cast<const void*>(copy_items<__nv_bfloat16, float>),
      reinterpret_cast<const void*>(copy_items<float, __nv_bfloat16>)};
  cudaError_t loaded = cudaSuccess;
  for (const Element element : kElements) {
    with_format(element, [&](auto format) {
      const auto kernel = reinterpret_cast<const void*>(combine_elements<decltype(format)>);
      if (loaded == cudaSuccess) loaded = cudaFuncGetAttributes(&attributes, kernel);
    });
  }
  if (loaded != cudaSuccess) return loaded;
  for (const void* const kernel : used) {
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

const char* explain(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

const KernelFunctions functions = {kKernelsVersion, copy,          quantize,
                                   dequantize,      product_parts, products,
                                   weighted_sum,    combine,       explain,
                                   probe};

}  // namespace
}  // namespace rueda::cuda::kernels

extern "C" __attribute__((visibility("default"))) const rueda::cuda::kernels::KernelFunctions*
rueda_cuda_kernels(uint32_t version) {
  return version == rueda::cuda::kernels::kKernelsVersion ? &rueda::cuda::kernels::functions
                                                          : nullptr;
}

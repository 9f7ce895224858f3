/* What librueda_cuda.so gives to librueda: the kernels, behind plain C types. The only thing that
 * both sides include; a change of it, of items.h or of combine.h's Combination changes
 * kKernelsVersion.
 *
 * Threads: any, with the device's context current. Everything is given to `stream` and returns at
 * once; the result is a cudaError_t, 0 is well. Memory is the device's. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/cuda/functions.h"
#include "collectives/cuda/kernels/combine.h"
#include "collectives/cuda/kernels/items.h"

namespace rueda::cuda::kernels {

inline constexpr uint32_t kKernelsVersion = 4;

enum class Format : int32_t { kFloat32 = 0, kFloat16, kBFloat16, kFloat8E4M3, kFloat8E5M2, kBytes };

extern "C" {

struct KernelFunctions {
  uint32_t version;
  /* to = round(from * factor) to the format of `to`; kBytes with kBytes and factor 1 copies bits.
   * Arithmetic in f32, nearest even; fp8 saturates. 801 (not supported): no such pair. */
  int (*copy)(const Table* table, Format from, Format to, float factor, StreamHandle stream);
  /* Blocks of 256 f32 -> 256 int8 and the f32 scale, as the CPU side's int8 compression does. */
  int (*quantize)(const float* from, int8_t* to, int64_t blocks, StreamHandle stream);
  int (*dequantize)(const int8_t* from, float* to, int64_t blocks, StreamHandle stream);
  /* products[3]: a.b, a.a, b.b in f64, by the same order of additions every time. scratch: 3
   * doubles for each product_parts(count). */
  int64_t (*product_parts)(int64_t count);
  int (*products)(const float* a, const float* b, int64_t count, double* scratch, double* products,
                  StreamHandle stream);
  /* Adasum's sum: a = round(a * wa + b * wb), in f64, of vectors that stand for a_ranks and b_ranks
   * ranks. products: as above, of the whole vectors. */
  int (*weighted_sum)(float* a, const float* b, int64_t count, const double* products,
                      int32_t a_ranks, int32_t b_ranks, StreamHandle stream);
  /* A reduction of all ranks' inputs, as combine.h has it. 801: no such element. */
  int (*combine)(const Combination* combination, StreamHandle stream);
  const char* (*explain)(int error);
  /* 0, or why no kernel can run on the current device: its kind, or a driver that is older than
   * the runtime. */
  int (*probe)(void);
};

/* What the plugin exports, as "rueda_cuda_kernels". Null when it was built for another version. */
typedef const struct KernelFunctions* (*GetKernelFunctions)(uint32_t version);

}  // extern "C"

}  // namespace rueda::cuda::kernels

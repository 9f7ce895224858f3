// Int8 compression: a warp for each block of 256 numbers, 8 to a lane. The format and the rounding
// are those of rueda.torch's Int8Compressor: 256 int8, then the f32 scale; a block with a number
// that is not finite comes back as NaN.
#pragma once

#include <cmath>
#include <cstdint>

namespace rueda::cuda::kernels {

constexpr int kBlock = 256;
constexpr int kWireBlock = kBlock + 4;
constexpr int kBlocksAtOnce = 8;  // warps of a thread block

inline unsigned int8_grid(int64_t blocks) {
  const int64_t wanted = (blocks + kBlocksAtOnce - 1) / kBlocksAtOnce;
  return static_cast<unsigned>(wanted < 65536 ? wanted : 65536);
}

__global__ void quantize_blocks(const float* from, int8_t* to, int64_t blocks) {
  const int lane = threadIdx.x % 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlocksAtOnce;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * kBlocksAtOnce + threadIdx.x / 32;
       block < blocks; block += stride) {
    float values[8];
    float largest = 0;
    bool finite = true;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      values[k] = from[block * kBlock + 8 * lane + k];
      finite = finite && isfinite(values[k]);
      largest = fmaxf(largest, fabsf(values[k]));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    finite = __all_sync(0xffffffffu, finite);
    const float scale = __fdiv_rn(largest, 127.0f);
    const float by = scale > 0 ? scale : 1.0f;
    int8_t* const out = to + block * kWireBlock;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float level = finite ? rintf(__fdiv_rn(values[k], by)) : 0.0f;
      out[8 * lane + k] = static_cast<int8_t>(fminf(fmaxf(level, -127.0f), 127.0f));
    }
    if (lane == 0) *reinterpret_cast<float*>(out + kBlock) = finite ? scale : nanf("");
  }
}

__global__ void dequantize_blocks(const int8_t* from, float* to, int64_t blocks) {
  const int lane = threadIdx.x % 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlocksAtOnce;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * kBlocksAtOnce + threadIdx.x / 32;
       block < blocks; block += stride) {
    const int8_t* const in = from + block * kWireBlock;
    const float scale = *reinterpret_cast<const float*>(in + kBlock);
#pragma unroll
    for (int k = 0; k < 8; ++k)
      to[block * kBlock + 8 * lane + k] = static_cast<float>(in[8 * lane + k]) * scale;
  }
}

}  // namespace rueda::cuda::kernels

// Elements as the kernels read them, for nvcc and for the host's compiler alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention/cuda/functions.h"
#include "collectives/cuda/kernels/combine.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define RUEDA_DEVICE __device__ __forceinline__
#else
#define RUEDA_DEVICE inline
#endif

namespace rueda::attention::cuda {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

RUEDA_DEVICE float from_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
#endif
}

RUEDA_DEVICE float widen(float value) { return value; }
RUEDA_DEVICE float widen(Brain value) { return from_bits(static_cast<uint32_t>(value.bits) << 16); }
RUEDA_DEVICE float widen(Half value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  if (exponent == 0) {
    const float small = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -small : small;
  }
  return from_bits(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13);
#endif
}

// Nearest, ties to even.
RUEDA_DEVICE void narrow(float value, float* to) { *to = value; }
RUEDA_DEVICE void narrow(float value, Half* to) {
  to->bits = rueda::cuda::kernels::Half::narrow(value);
}
RUEDA_DEVICE void narrow(float value, Brain* to) {
  // A NaN's fraction may be all in the bits that are cut off.
  to->bits = value != value ? 0x7fc0 : rueda::cuda::kernels::Brain::narrow(value);
}

RUEDA_DEVICE float minus_infinity() { return from_bits(0xff800000u); }

// exp(a - b) for what may both be -infinity, which gives 0.
RUEDA_DEVICE float exp_from(float a, float b) { return a == minus_infinity() ? 0.0f : expf(a - b); }

}  // namespace rueda::attention::cuda

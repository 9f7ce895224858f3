// Elements as the kernels read them, for nvcc and for the host's compiler alike.
#pragma once

#include <cmath>
#include <cstdint>

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

RUEDA_DEVICE float widen(float value) { return value; }
RUEDA_DEVICE float widen(Brain value) { return rueda::cuda::kernels::Brain::widen(value.bits); }
RUEDA_DEVICE float widen(Half value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  return rueda::cuda::kernels::Half::widen(value.bits);
#endif
}

// Nearest, ties to even.
RUEDA_DEVICE void narrow(float value, float* to) { *to = value; }
RUEDA_DEVICE void narrow(float value, Half* to) {
  to->bits = rueda::cuda::kernels::Half::narrow(value);
}
RUEDA_DEVICE void narrow(float value, Brain* to) {
  to->bits = rueda::cuda::kernels::Brain::narrow(rueda::cuda::kernels::canonical(value));
}

RUEDA_DEVICE float minus_infinity() {
  return rueda::cuda::kernels::bits_as<float>(uint32_t{0xff800000});
}

// exp(a - b) for what may both be -infinity, which gives 0.
RUEDA_DEVICE float exp_from(float a, float b) { return a == minus_infinity() ? 0.0f : expf(a - b); }

}  // namespace rueda::attention::cuda

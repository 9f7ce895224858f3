// The kernel for bfloat16 on CPUs with AVX512-BF16.
#pragma once

#include "attention/local_kernel.h"

namespace rueda::attention {

#if defined(__x86_64__) && defined(__GNUC__)
inline constexpr bool kHasBf16Kernel = true;
#else
inline constexpr bool kHasBf16Kernel = false;  // the functions do nothing
#endif

void bf16_forward(const KernelTile& tile, float* scratch);
void bf16_backward(const KernelTile& tile, float* scratch);

}  // namespace rueda::attention

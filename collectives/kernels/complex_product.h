// Products of complex numbers. One scalar code for all targets: they are rare.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/base/types.h"

namespace rueda::kernels {

// out[i] = inputs[0][i] * inputs[1][i] * ..., left to right, then * factor rounded to the dtype of
// the parts; out may be an input. (a + bi)(c + di) is (ac - bd) + (ad + bc)i, as NumPy has it, each
// operation rounded: an infinity times a number may give NaN. Pre: is_complex(dtype).
void multiply_complex(DType dtype, std::span<const std::byte* const> inputs, std::byte* out,
                      size_t count, double factor);

}  // namespace rueda::kernels

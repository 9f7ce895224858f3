// The last step of integer reductions: exact division, then scaling by a factor.
//
// One scalar code for all targets: it runs on blocks that are still in the first-level cache, and
// only for integer averages and scaled integers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/base/types.h"

namespace rueda::kernels {

// out[i] = trunc(in[i] / divisor), then, for a factor other than 1, trunc(double(.) * factor)
// limited to what the dtype holds; a NaN product gives 0. in may be out. Pre: is_integer(dtype),
// divisor >= 1.
void finish_integers(DType dtype, const std::byte* in, std::byte* out, size_t count,
                     int64_t divisor, double factor);

}  // namespace rueda::kernels

// How fast local kernels are here, on one core.
#pragma once

#include <vector>

#include "attention/local_kernel.h"
#include "collectives/base/types.h"

namespace rueda::attention {

// CPU seconds of the calling thread for forward and backward of a tile of this width, the best of a
// few rounds, for each kernel. Takes some tens of milliseconds.
std::vector<double> time_kernels(const std::vector<const LocalKernel*>& kernels, DType queries,
                                 DType keys, int64_t head_dim);

// Whether the CPU multiplies matrices of bfloat16 (AMX).
bool has_matrix_units();

}  // namespace rueda::attention

// Int8 compression on a GPU by rueda's own kernels, for bindings whose frameworks would need
// several passes: blocks of 256 float32 to 256 int8 and their float32 scale (260 bytes), and back.
#pragma once

#include <cstdint>

#include "collectives/nccl/machine.h"

namespace rueda::nccl {

// In `stream` of the device, without a wait. from, to: the device's memory, 4-byte aligned.
// Threads: any. Unimplemented: there are no kernels for the device; nothing was done.
Status int8_quantize(nccl::Machine* machine, const float* from, int8_t* to, int64_t blocks,
                     int device, cuda::StreamHandle stream);
Status int8_dequantize(nccl::Machine* machine, const int8_t* from, float* to, int64_t blocks,
                       int device, cuda::StreamHandle stream);

}  // namespace rueda::nccl

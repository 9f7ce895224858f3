// Reduction: how a reduction with its scales is said to NCCL. Pure.
//
//   floats    sum, min, max, product as they are; average of plain inputs is ncclAvg; every other
//             factor goes onto the inputs (PreMulSum), prescale and postscale as one
//   8 bit     average of plain inputs, no factor; NCCL's sums are rounded at every step
//   16 bit    a factor must be a number of the tensor's type, as NCCL takes no other
//   integers  no average, no factor: NCCL would round otherwise than the CPU side
//   bool      as bytes: sum is max, product is min
//   complex   sum and average of the parts, as those of floats
//   int16, uint16  NCCL has none
// What is missing is done by rueda's own kernel where all ranks have it (device_combine.h).
// Adasum is no reduction of NCCL's (device_adasum.h).
#pragma once

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/nccl/functions.h"

namespace rueda::nccl {

struct Reduction {
  Type type = Type::kFloat32;
  size_t parts = 1;  // of the tensor's elements, each of this type
  Op op = kSum;
  double factor = 1.0;  // of the inputs; not 1: PreMulSum, `op` does not count
};

// prescale: of each input. factor: of the sum; an average's holds 1 / size. divisor: integers'
// average. Unimplemented says what to do instead; it is the same on all ranks.
Result<Reduction> plan_reduction(DType dtype, ReduceOp op, double prescale, double factor,
                                 int64_t divisor, Rank size);

// Unimplemented where the ranks' NCCL and the weakest of their GPUs (90 is 9.0) have no such
// reduction.
Status check_reduction(Type type, int version, int capability);

// The bytes of a factor in the tensor's type, at `to` (8 bytes of room).
void write_factor(Type type, double factor, void* to);

}  // namespace rueda::nccl

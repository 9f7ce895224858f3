// What average, prescale and postscale mean for each dtype: where a value is scaled and where it is
// rounded.
//
// One page for all protocols (docs/numerics.md has it for users). With n ranks:
//
//   integers   sum, / n truncating toward zero when averaging; a scale is applied in f64 and
//              truncated toward zero
//   f32, f64   sum * float(postscale / n); the prescaled input is rounded to its dtype before the
//              sum; of complex numbers so the parts
//   f16, bf16  summed in f32 and rounded once; average: the f32 sum is scaled before that rounding.
//              When the user gives a scale, Horovod's rounding points: the prescaled input, the sum
//              and the scaled sum are each rounded
#pragma once

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/kernels/kernels.h"

namespace rueda {

struct Scaling {
  double prescale = 1.0;   // of each input, rounded to the dtype
  kernels::Finish finish;  // of the combined value
};

// InvalidArgument where the combination has no meaning and says what has: a dtype without this
// reduction, bool with a scale, a scale that is not finite.
Result<Scaling> plan_scaling(DType dtype, ReduceOp op, double prescale, double postscale,
                             Rank size);

// The same as a Status, and whether the CPU has such a reduction. GPUs may lack more (collectives/
// nccl/reduction.h).
Status check_reduction(DType dtype, ReduceOp op, double prescale, double postscale, bool on_device);

}  // namespace rueda

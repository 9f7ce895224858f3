// Element-wise work of the collectives: n-way reduction and scaled copies, SIMD with run-time
// dispatch (Highway).
//
// Bits:    every target (portable, SSE4, AVX2, AVX-512) gives the same bits: inputs are combined
//          left to right in the order given, without FMA contraction, bf16 is rounded to nearest
//          even in integer arithmetic, f16 to nearest even. Assumes the default rounding mode and
//          denormals on in the calling thread.
// NaN:     a NaN that is computed is the positive quiet NaN without payload; copies keep the bits.
// 16-bit:  f16 and bf16 are combined in f32 and rounded once at the end (see Finish).
// complex: sums, factors and averages are those of the parts, products (ac - bd) + (ad + bc)i.
// min/max: of floats: a NaN in any input gives NaN; -0 is less than +0.
// Threads: pure functions, any thread. Memory is borrowed for the call; no alignment is required.
// Failure: a broken precondition aborts (RUEDA_CHECK).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "collectives/base/types.h"

namespace rueda::kernels {

// What happens to the combined value before it is stored.
//
//   integers:  value / divisor (truncating toward zero), then * factor in f64, truncated toward
//              zero and limited to what the dtype holds (a NaN product gives 0)
//   f64:       value * factor
//   f32:       value * float(factor)
//   16 bit:    with round_first: round(value) to the dtype, then * float(factor) in f32, then round
//              again (Horovod's rounding points when the user gives a scale); else
//              value * float(factor) in f32, one rounding
//   bool:      no factor, no divisor (callers refuse them)
// A factor of exactly 1 is skipped, so is a divisor of 1. Only integers may have a divisor; it is
// at least 1.
struct Finish {
  double factor = 1.0;
  int64_t divisor = 1;
  bool round_first = false;
};

// out[i] = finish(inputs[0][i] op inputs[1][i] op ... ), left to right. kAverage combines like kSum
// (the division is Finish's). `out` may be one of the inputs exactly, or overlap none of them. At
// least one input; one input with nothing to finish is a plain copy (bool: normalised to 0 and 1).
// Integer sums and products wrap around (two's complement). Pre: one of kHostReducedDTypes that
// has_reduction, inputs not empty.
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs, std::byte* out,
            size_t count, const Finish& finish);

// out[i] = in[i] * factor, rounded to the dtype: integers in f64 truncated toward zero and limited
// to what the dtype holds, f16/bf16/f32 with a factor rounded to f32 and f32 arithmetic, f64
// natively, complex numbers by their parts. factor 1 is a plain copy. In place (in == out) is
// allowed. bool: factor must be 1.
void scaled_copy(DType dtype, const std::byte* in, std::byte* out, size_t count, double factor);

// A copy that writes past the caches where the machine can: for results that nobody reads soon and
// that do not fit there. All of it is visible to whoever sees a later release store. No overlap.
void copy_streaming(const std::byte* in, std::byte* out, size_t bytes);

// Bulk conversions f32 <-> 16 bit with the same rounding. Widening is exact (a signalling f16 NaN
// becomes quiet). in and out do not overlap.
void convert_to_f32(DType from, const std::byte* in, float* out, size_t count);
void convert_from_f32(DType to, const float* in, std::byte* out, size_t count);

// The dispatch table: names such as "portable", "sse4", "avx2", "avx512" that this CPU can run,
// best last; the one in use. use_target is for tests and for RUEDA_SIMD_TARGET; returns false for
// an unknown or unsupported name.
std::vector<std::string> available_targets();
std::string active_target();
bool use_target(const std::string& name);

}  // namespace rueda::kernels

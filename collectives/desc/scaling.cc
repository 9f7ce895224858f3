#include "collectives/desc/scaling.h"

#include <cmath>

namespace rueda {

namespace {

// Of what has no reduction.
const char* instead_of(DType dtype, ReduceOp op) {
  if (op == ReduceOp::kAdasum) return "use float16, bfloat16, float32 or float64";
  if (is_bitwise(op)) return "use an integer or bool dtype";
  if (is_complex(dtype)) {
    return "complex numbers have no order; use sum, average or product, or reduce the real and the "
           "imaginary part, or the absolute value";
  }
  return "use sum (or), min or product (and)";
}

}  // namespace

Status check_reduction(DType dtype, ReduceOp op, double prescale, double postscale,
                       bool on_device) {
  if (is_float8(dtype) && !on_device) {
    return invalid_argument(
        std::string(name_of(dtype)) +
        " tensors on the CPU are moved (allgather, broadcast, alltoall, send), not "
        "reduced: reduce them as float16, bfloat16 or float32, or on a GPU");
  }
  return plan_scaling(dtype, op, prescale, postscale, 1).status();
}

Result<Scaling> plan_scaling(DType dtype, ReduceOp op, double prescale, double postscale,
                             Rank size) {
  const bool scaled = prescale != 1.0 || postscale != 1.0;
  if (!std::isfinite(prescale) || !std::isfinite(postscale)) {
    return invalid_argument("prescale_factor and postscale_factor must be finite numbers");
  }
  if (!has_reduction(dtype, op)) {
    return invalid_argument(std::string(op == ReduceOp::kAdasum ? "Adasum" : name_of(op)) + " of " +
                            name_of(dtype) + " tensors is not defined: " + instead_of(dtype, op));
  }
  if (is_bitwise(op) && scaled)
    return invalid_argument(std::string("the result of ") + name_of(op) + " cannot be scaled");
  if (dtype == DType::kBool && scaled) return invalid_argument("bool tensors cannot be scaled");
  Scaling scaling;
  scaling.prescale = prescale;
  scaling.finish.factor = postscale;
  if (op == ReduceOp::kAverage) {
    if (is_integer(dtype)) {
      scaling.finish.divisor = size;
    } else {
      scaling.finish.factor = postscale / size;
    }
  }
  scaling.finish.round_first = scaled && size_of(dtype) == 2 && is_floating(dtype);
  return scaling;
}

}  // namespace rueda

#include "collectives/desc/scaling.h"

#include <cmath>

namespace rueda {

Result<Scaling> plan_scaling(DType dtype, ReduceOp op, double prescale, double postscale,
                             Rank size) {
  const bool scaled = prescale != 1.0 || postscale != 1.0;
  if (!std::isfinite(prescale) || !std::isfinite(postscale)) {
    return invalid_argument("prescale_factor and postscale_factor must be finite numbers");
  }
  if (dtype == DType::kBool && op == ReduceOp::kAverage) {
    return invalid_argument(
        "average of bool tensors is not defined: use sum (or), min or product (and)");
  }
  if (op == ReduceOp::kAdasum && (!is_floating(dtype) || is_float8(dtype))) {
    return invalid_argument(std::string("Adasum of ") + name_of(dtype) +
                            " tensors is not defined: use float16, bfloat16, float32 or float64");
  }
  if (is_bitwise(op) && is_floating(dtype)) {
    return invalid_argument(std::string(name_of(op)) + " of " + name_of(dtype) +
                            " tensors is not defined: use an integer or bool dtype");
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

// What the kernels must give, bit for bit, computed the slow way: one element at a time, 16-bit
// floats through exact f64 arithmetic. Shares no code with the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/base/types.h"
#include "collectives/kernels/kernels.h"

namespace rueda::kernels::reference {

using Bytes = std::vector<std::byte>;

double decode_f16(uint16_t bits);   // exact; NaN for any NaN
double decode_bf16(uint16_t bits);  // exact; NaN for any NaN
uint16_t encode_f16(float value);   // nearest even; canonical NaN
uint16_t encode_bf16(float value);

// As kernels::reduce. Inputs hold whole elements; returns the output.
Bytes reduce(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs, const Finish& finish = {});

enum class Pattern {
  kBits,     // uniformly random bits: includes NaNs, infinities, denormals
  kTame,     // floats near 1, where rounding is what differs; integers near zero
  kSpecial,  // only zeros of both signs, infinities, NaNs, extremes, denormals
};
Bytes random_elements(DType dtype, Pattern pattern, size_t count, std::mt19937_64& random);

// Runs `body(name)` with each target of this CPU in use, then goes back to the best.
template <typename Body>
void with_each_target(Body body) {
  const std::vector<std::string> names = available_targets();
  for (const std::string& name : names) {
    if (!use_target(name)) throw std::runtime_error("target " + name + " is listed but refused");
    body(name);
  }
  use_target(names.back());
}

}  // namespace rueda::kernels::reference

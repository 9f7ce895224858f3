#include "collectives/kernels/complex_product.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace rueda::kernels {
namespace {

template <typename Float>
struct Number {
  Float real;
  Float imaginary;
};

template <typename Float>
Number<Float> load(const std::byte* from, size_t index) {
  Number<Float> value;
  std::memcpy(&value, from + index * sizeof(value), sizeof(value));
  return value;
}

template <typename Float>
Float finished(Float part, Float factor) {
  const Float scaled = part * factor;
  return std::isnan(scaled) ? std::numeric_limits<Float>::quiet_NaN() : scaled;
}

template <typename Float>
void multiply(std::span<const std::byte* const> inputs, std::byte* out, size_t count,
              double factor_f64) {
  const auto factor = static_cast<Float>(factor_f64);
  for (size_t i = 0; i < count; ++i) {
    Number<Float> a = load<Float>(inputs[0], i);
    for (const std::byte* input : inputs.subspan(1)) {
      const Number<Float> b = load<Float>(input, i);
      a = {a.real * b.real - a.imaginary * b.imaginary,
           a.real * b.imaginary + a.imaginary * b.real};
    }
    a = {finished(a.real, factor), finished(a.imaginary, factor)};
    std::memcpy(out + i * sizeof(a), &a, sizeof(a));
  }
}

}  // namespace

void multiply_complex(DType dtype, std::span<const std::byte* const> inputs, std::byte* out,
                      size_t count, double factor) {
  if (dtype == DType::kComplex64) return multiply<float>(inputs, out, count, factor);
  return multiply<double>(inputs, out, count, factor);
}

}  // namespace rueda::kernels

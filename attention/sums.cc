#include "attention/sums.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "collectives/kernels/kernels.h"

namespace rueda::attention {
namespace {

// In eight sums, so that none waits for the one before.
double dot(const float* a, const float* b, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += static_cast<double>(a[i + j]) * b[i + j];
  }
  for (; i < count; ++i) sums[i % 8] += static_cast<double>(a[i]) * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

}  // namespace

void transpose(const float* from, int64_t batch, int64_t rows, int64_t columns, float* to) {
  for (int64_t b = 0; b < batch; ++b, from += rows * columns, to += rows * columns) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
    }
  }
}

void make_delta(const AttentionSpec& spec, const std::byte* dout, const std::byte* out,
                const float* dlse, int64_t rows, float* delta) {
  const int64_t d = spec.head_dim;
  const auto bytes = static_cast<int64_t>(size_of(spec.dtype));
  std::vector<float> a(static_cast<size_t>(d)), b(static_cast<size_t>(d));
  for (int64_t i = 0; i < rows; ++i) {
    const std::byte* x = dout + i * d * bytes;
    const std::byte* y = out + i * d * bytes;
    const auto* left = reinterpret_cast<const float*>(x);
    const auto* right = reinterpret_cast<const float*>(y);
    if (bytes == 2) {
      kernels::convert_to_f32(spec.dtype, x, a.data(), a.size());
      kernels::convert_to_f32(spec.dtype, y, b.data(), b.size());
      left = a.data();
      right = b.data();
    }
    const double sum = dot(left, right, d);
    delta[i] = static_cast<float>(sum - (dlse == nullptr ? 0.0 : static_cast<double>(dlse[i])));
  }
}

void finish(float* acc, float* m, const float* l, int64_t rows, int64_t width, float* low) {
  for (int64_t i = 0; i < rows; ++i) {
    if (low != nullptr) low[i] = 0;
    if (l[i] == 0) continue;  // saw no key: zeros and -infinity
    const float factor = 1.0f / l[i];
    for (int64_t x = 0; x < width; ++x) acc[i * width + x] *= factor;
    const double lse = static_cast<double>(m[i]) + std::log(static_cast<double>(l[i]));
    m[i] = static_cast<float>(lse);
    if (low != nullptr) low[i] = static_cast<float>(lse - static_cast<double>(m[i]));
  }
}

void merge(const float* acc, const float* m, const float* l, int64_t rows, int64_t width,
           float* into_acc, float* into_m, float* into_l) {
  for (int64_t i = 0; i < rows; ++i) {
    const float theirs = m[i];
    if (theirs == -std::numeric_limits<float>::infinity()) continue;
    float* sums = into_acc + i * width;
    const float* add = acc + i * width;
    const float now = std::max(into_m[i], theirs);
    const float keep = std::exp(into_m[i] - now), take = std::exp(theirs - now);
    for (int64_t x = 0; x < width; ++x) sums[x] = sums[x] * keep + add[x] * take;
    into_l[i] = into_l[i] * keep + l[i] * take;
    into_m[i] = now;
  }
}

}  // namespace rueda::attention

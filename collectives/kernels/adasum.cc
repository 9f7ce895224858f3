#include "collectives/kernels/adasum.h"

#include <cmath>
#include <limits>

namespace rueda::kernels {
namespace {

constexpr size_t kLanes = 8;

double total(const double (&sums)[kLanes]) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <typename T>
Products products_of(const T* a, const T* b, size_t count) {
  double dot[kLanes] = {};
  double aa[kLanes] = {};
  double bb[kLanes] = {};
  const auto add = [&](size_t lane, size_t i) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    dot[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(lane, i + lane);
  }
  for (size_t lane = 0; i < count; ++lane, ++i) add(lane, i);
  return {total(dot), total(aa), total(bb)};
}

template <typename T>
void add_weighted(T* a, const T* b, size_t count, const AdasumWeights& weights) {
  for (size_t i = 0; i < count; ++i) {
    a[i] = static_cast<T>(static_cast<double>(a[i]) * weights.a +
                          static_cast<double>(b[i]) * weights.b);
  }
}

}  // namespace

Products& Products::operator+=(const Products& other) {
  dot += other.dot;
  aa += other.aa;
  bb += other.bb;
  return *this;
}

Products products(const float* a, const float* b, size_t count) { return products_of(a, b, count); }
Products products(const double* a, const double* b, size_t count) {
  return products_of(a, b, count);
}

AdasumWeights adasum_weights(const Products& products, Rank a_ranks, Rank b_ranks) {
  static const double kNothing = std::sqrt(std::numeric_limits<double>::min());
  const double ranks = static_cast<double>(a_ranks) + static_cast<double>(b_ranks);
  const auto weight = [&](Rank own, double norm) {
    return norm < kNothing ? 1.0 : 1.0 - own / ranks * products.dot / norm;
  };
  return {weight(a_ranks, products.aa), weight(b_ranks, products.bb)};
}

void weighted_sum(float* a, const float* b, size_t count, const AdasumWeights& weights) {
  add_weighted(a, b, count, weights);
}
void weighted_sum(double* a, const double* b, size_t count, const AdasumWeights& weights) {
  add_weighted(a, b, count, weights);
}

}  // namespace rueda::kernels

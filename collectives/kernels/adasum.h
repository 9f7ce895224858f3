// The arithmetic of Adasum on a piece of two vectors: dot products, the coefficients that follow
// from them, and the weighted sum. Idea and source: collectives/algorithms/adasum.h.
//
// Bits:    products are made and added in f64 by kLanes running sums, element i to sum i % kLanes,
//          which are added pairwise at the end: the same on every machine, whatever it vectorises.
// Threads: pure functions, any thread. Memory is borrowed for the call.
#pragma once

#include <cstddef>

#include "collectives/base/types.h"

namespace rueda::kernels {

struct Products {
  double dot = 0;  // a . b
  double aa = 0;   // a . a
  double bb = 0;   // b . b
  Products& operator+=(const Products& other);
};
Products products(const float* a, const float* b, size_t count);
Products products(const double* a, const double* b, size_t count);

// out = a_weight * a + b_weight * b stands for the ranks of both.
struct AdasumWeights {
  double a = 1;
  double b = 1;
};
// a stands for a_ranks ranks, b for b_ranks. A vector whose squared norm is below
// sqrt(smallest normal f64) counts as orthogonal to the other.
AdasumWeights adasum_weights(const Products& products, Rank a_ranks, Rank b_ranks);

// a[i] = a[i] * weights.a + b[i] * weights.b, in f64, rounded once.
void weighted_sum(float* a, const float* b, size_t count, const AdasumWeights& weights);
void weighted_sum(double* a, const double* b, size_t count, const AdasumWeights& weights);

}  // namespace rueda::kernels

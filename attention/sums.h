// Arithmetic on the partial sums and rows of one rank, apart from the kernels.
#pragma once

#include "attention/spec.h"

namespace rueda::attention {

// (batch, columns, rows) from (batch, rows, columns).
void transpose(const float* from, int64_t batch, int64_t rows, int64_t columns, float* to);

// delta = sum(dout * out) - dlse for each row of head_dim elements of the spec's dtype; dlse may be
// null: zeros.
void make_delta(const AttentionSpec& spec, const std::byte* dout, const std::byte* out,
                const float* dlse, int64_t rows, float* delta);

// acc / l and m + log l, in place; rows x width. low, if any, gets what the latter loses by
// rounding.
void finish(float* acc, float* m, const float* l, int64_t rows, int64_t width, float* low);

// Partial results of `rows` rows merged by log-sum-exp; rows x width.
void merge(const float* acc, const float* m, const float* l, int64_t rows, int64_t width,
           float* into_acc, float* into_m, float* into_l);

}  // namespace rueda::attention

// The oracle: dense attention in float64 with an explicit multiplicity for every (query, key) pair.
// Slow and obvious; what everything else is compared with.
#pragma once

#include <vector>

#include "attention/spec.h"

namespace rueda::testing {

// (batch, tokens, heads, head_dim), the last index fastest.
using Doubles = std::vector<double>;
using attention::AttentionSpec;

struct OracleResult {
  Doubles out;
  Doubles lse;  // (batch, heads, tokens); -infinity for a query without keys
};

struct OracleGradients {
  Doubles dq, dk, dv;
};

// How often the mask lets query i see key j on a KV head. Written from the mask's definition, not
// from components_of.
int64_t multiplicity(const AttentionSpec& spec, int64_t kv_head, int64_t i, int64_t j);

// Over the whole sequence.
OracleResult oracle_forward(const AttentionSpec& spec, const Doubles& q, const Doubles& k,
                            const Doubles& v);
// dlse, the gradient of the log-sum-exp, may be empty.
OracleGradients oracle_backward(const AttentionSpec& spec, const Doubles& q, const Doubles& k,
                                const Doubles& v, const OracleResult& result, const Doubles& dout,
                                const Doubles& dlse);

}  // namespace rueda::testing

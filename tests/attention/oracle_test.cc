#include <catch2/catch.hpp>
#include <cmath>

#include "tests/attention/oracle.h"
#include "tests/attention/specs.h"

namespace rueda::testing {
using namespace attention;
namespace {

Doubles random_doubles(SpecMaker* maker, int64_t count) {
  std::normal_distribution<double> normal;
  Doubles values(static_cast<size_t>(count));
  for (double& x : values) x = normal(maker->engine);
  return values;
}

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::isinf(a[i]) ? 0 : a[i] * b[i];
  return sum;
}

}  // namespace

TEST_CASE("the oracle's gradients are those of its forward, by central differences",
          "[attention]") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SpecMaker maker(seed);
    AttentionSpec spec = maker.spec(9, 1);
    spec.head_dim = 4;
    if (seed % 2 != 0) maker.change_scores(&spec);
    const int64_t qs = spec.batch * spec.length * spec.heads * spec.head_dim;
    const int64_t ks = spec.batch * spec.keys() * spec.kv_heads * spec.head_dim;
    Doubles inputs[3] = {random_doubles(&maker, qs), random_doubles(&maker, ks),
                         random_doubles(&maker, ks)};
    const Doubles dout = random_doubles(&maker, qs);
    const Doubles dlse = random_doubles(&maker, spec.batch * spec.heads * spec.length);
    const auto loss = [&] {
      const OracleResult r = oracle_forward(spec, inputs[0], inputs[1], inputs[2]);
      return dot(r.out, dout) + dot(r.lse, dlse);
    };
    const OracleResult result = oracle_forward(spec, inputs[0], inputs[1], inputs[2]);
    const OracleGradients g =
        oracle_backward(spec, inputs[0], inputs[1], inputs[2], result, dout, dlse);
    const Doubles* gradients[3] = {&g.dq, &g.dk, &g.dv};
    double error = 0, norm = 0;
    for (int which = 0; which < 3; ++which) {
      for (size_t i = 0; i < inputs[which].size(); i += 7) {
        const double kept = inputs[which][i], step = 1e-5;
        inputs[which][i] = kept + step;
        const double above = loss();
        inputs[which][i] = kept - step;
        const double below = loss();
        inputs[which][i] = kept;
        const double slope = (above - below) / (2 * step);
        error += std::pow(slope - (*gradients[which])[i], 2);
        norm += slope * slope;
      }
    }
    CHECK(std::sqrt(error) <= 1e-7 * std::sqrt(norm) + 1e-9);
  }
}

}  // namespace rueda::testing

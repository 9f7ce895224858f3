// How much of the messages' time the schedule hides behind arithmetic, in a model without a clock.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdio>

#include "tests/attention/schedule_model.h"

namespace rueda::testing {
using namespace attention;

TEST_CASE("the schedule hides messages behind arithmetic, in a model", "[attention]") {
  for (const Rank ranks : {2, 3, 4, 5, 6, 7, 8}) {
    AttentionSpec spec;  // A9's (docs/attention.md), with as many tokens of each rank
    spec.length = 8192 * ranks;
    spec.ranks = ranks;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = 64;
    spec.layout = Layout::kZigzag;
    const double forward = ScheduleModel(spec, false).overlap();
    const double backward = ScheduleModel(spec, true).overlap();
    std::printf("%d ranks: overlap forward %.3f, backward %.3f\n", ranks, forward, backward);
    CHECK(forward >= 0.95);
    CHECK(backward >= 0.95);
  }
}

TEST_CASE("the model: arithmetic alone, messages alone", "[attention]") {
  AttentionSpec spec;
  spec.length = 4096;
  spec.ranks = 4;
  spec.head_dim = 64;
  spec.layout = Layout::kZigzag;
  for (const bool backward : {false, true}) {
    ScheduleModel model(spec, backward);
    CHECK(std::abs(model.seconds(1e-9) - 1) < 1e-6);  // all ranks have as much to compute
    CHECK(std::abs(model.seconds(1e6) / 1e6 - 1) < 0.01);
  }
}

}  // namespace rueda::testing

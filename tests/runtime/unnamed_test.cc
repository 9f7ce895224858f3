// Operations without a name: the n-th of a kind meets the n-th of every other rank.
#include <catch2/catch.hpp>

#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {
namespace {

TEST_CASE("any number of unnamed operations may be under way, each meets its own", "[unnamed]") {
  const int count = 100;
  for (const Kind kind : kTestedKinds) {
    for (const Rank size : world_sizes()) {
      INFO(name_of(kind) << " x " << size);
      RuntimeWorld world(kind, size);
      const auto wrong = world.run([&](Rank rank, engine::Runtime& runtime) {
        std::vector<Floats> data;
        for (int i = 0; i < count; ++i)
          data.emplace_back(static_cast<size_t>(1 + i % 5), static_cast<float>(i * (rank + 1)));
        std::vector<RequestPtr> works;
        for (Floats& values : data) works.push_back(start(runtime, sum_of("", &values)));
        // Each rank waits in an order of its own.
        for (int i = 0; i < count; ++i)
          must(end_of(works[static_cast<size_t>((i * 7 + rank * 13) % count)]));
        int bad = 0;
        for (int i = 0; i < count; ++i) {
          const auto sum = static_cast<float>(i * size * (size + 1) / 2);
          for (const float value : data[static_cast<size_t>(i)]) bad += value != sum ? 1 : 0;
        }
        return bad;
      });
      for (const int bad : wrong) CHECK(bad == 0);
    }
  }
}

TEST_CASE("unnamed operations that still wait for their turn end with their rank", "[unnamed]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto ended = world.run([&](Rank rank, engine::Runtime& runtime) {
    if (rank == 1) return 0;  // submits nothing
    std::vector<Floats> data(50, Floats(3, 1.0f));
    std::vector<RequestPtr> works;
    for (Floats& values : data) works.push_back(start(runtime, sum_of("", &values)));
    runtime.shutdown();
    int count = 0;
    for (const RequestPtr& work : works) count += end_of(work).code() == Code::kCancelled ? 1 : 0;
    return count;
  });
  CHECK(ended[0] == 50);
}

}  // namespace
}  // namespace rueda::testing

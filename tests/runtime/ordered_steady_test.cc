// What steady calls in ordered groups cost: no message of the agreement, no allocation.
#include <catch2/catch.hpp>

#include "tests/runtime/group_calls.h"
#include "tests/runtime/steady_cost.h"

namespace rueda::testing {
namespace {

using K = CollectiveKind;

TEST_CASE("steady calls send no message of the agreement", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const Ranks list = {0, 1, 2};
    const auto sent = world.run([&](Rank rank, engine::Runtime& r) -> int64_t {
      const uint32_t group = must(r.open_group("steady", list));
      if (!trouble_with_group(r, group, list).empty()) return -1;
      const int64_t before = r.counter("control_messages");
      for (int i = 0; i < 50; ++i) {
        if (!trouble_with_group(r, group, list, 1 + 100 * static_cast<size_t>(i)).empty())
          return -1;
        // Rows that nobody knows beforehand.
        const Floats rows(static_cast<size_t>(rank + i), 1);
        if (!call(r, call_of(group, K::kAllgather, rows, nullptr)).ok()) return -1;
      }
      return r.counter("control_messages") - before;
    });
    CHECK(sent == std::vector<int64_t>(3, 0));
  }
}

// Its memory lives as long as the measurement.
struct SteadyCalls {
  SteadyCalls(engine::Runtime& r, Rank size) {
    Ranks list;
    for (Rank rank = 0; rank < size; ++rank) list.push_back(rank);
    const uint32_t group = must(r.open_group("steady", list));
    for (const int64_t count : {1, 3000})
      sums.push_back(make(r, in_group(group, shape_of(K::kAllreduce, "", DType::kFloat32, count))));
    auto gather = shape_of(K::kAllgather, "", DType::kFloat32, 5);
    gather.output_rows = 5 * size;
    gathered = make(r, in_group(group, gather));
    barrier = make(r, in_group(group, shape_of(K::kBarrier, "", DType::kFloat32, 0)));
  }
  bool run() {
    for (Floats* data : {&small, &large}) std::fill(data->begin(), data->end(), 1.0F);
    // Two under way, one after the other.
    must(sums[1]->start(in_of(large), out_of(&large)));
    must(sums[0]->run(in_of(small), out_of(&small)));
    must(gathered->run(in_of(rows), out_of(&all)));
    must(barrier->run(nullptr, nullptr));
    must(end_of(sums[1]));
    return small[0] == static_cast<float>(all.size()) / 5 && large[2999] == small[0];
  }
  std::vector<RequestPtr> sums;
  RequestPtr gathered, barrier;
  Floats small = Floats(1), large = Floats(3000), rows = Floats(5, 1), all = Floats(10);
};

TEST_CASE("steady persistent calls send no message of the agreement and allocate nothing",
          "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    const auto costs = steady_costs(kind, 2, 40, 60, [](Rank, engine::Runtime& r) {
      return [calls = std::make_shared<SteadyCalls>(r, 2)](int) { return calls->run(); };
    });
    for (const SteadyCost& cost : costs) {
      INFO(cost.stacks);
      CHECK(cost.right);
      CHECK(cost.messages == 0);
      // Over sockets room for a message that is early is made when one is early for the first time.
      if (kind == Kind::kShm) CHECK(cost.allocations == 0);
    }
  }
}

}  // namespace
}  // namespace rueda::testing

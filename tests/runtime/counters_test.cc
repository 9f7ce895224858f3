// Counters: one table of names and fields, from those who count to those who ask.
#include <catch2/catch.hpp>

#include <set>
#include <thread>

#include "runtime/observe/counters/published.h"
#include "tests/runtime/runtime_calls.h"

namespace rueda::testing {
namespace {

TEST_CASE("what is published is read, each counter in its place", "[counters]") {
  counters::Values values;
  int64_t number = 0;
  for (const auto& row : counters::kValues) values.*row.field = ++number;
  counters::Published published;
  CHECK(published.read() == counters::Values());
  published.publish(values);
  CHECK(published.read() == values);
}

TEST_CASE("counters may be read while somebody publishes", "[counters]") {
  counters::Published published;
  std::thread writer([&] {
    counters::Values values;
    for (values.batches = 1; values.batches <= 10'000; ++values.batches) published.publish(values);
  });
  for (int64_t before = 0; before < 10'000;) {
    const int64_t now = published.read().batches;
    if (now < before) FAIL("a sum went back");
    before = now;
  }
  writer.join();
}

TEST_CASE("every counter may be asked for by its name, and all of them at once", "[counters]") {
  RuntimeWorld world(Kind::kShm, 2);
  world.run([](Rank, engine::Runtime& runtime) {
    for (int step = 0; step < 3; ++step) {
      Floats a(10, 1.0f), b(10, 1.0f);
      const std::vector<RequestPtr> works = {start(runtime, sum_of("a", &a)),
                                             start(runtime, sum_of("b", &b))};
      for (const RequestPtr& work : works) must(end_of(work));
    }
    runtime.shutdown();  // nothing is counted any more
    return true;
  });
  for (Rank rank = 0; rank < 2; ++rank) {
    const counters::Values all = world[rank].counters();
    std::set<std::string> names;
    for (const auto& row : counters::kValues) {
      INFO(row.name);
      CHECK(names.insert(row.name).second);
      CHECK(world[rank].counter(row.name) == all.*row.field);
      CHECK(all.*row.field >= 0);
    }
    CHECK(all.tensors == 6);
    CHECK(all.shm_bytes >= all.bytes_reduced);
    CHECK(all.recording == 0);
  }
}

}  // namespace
}  // namespace rueda::testing

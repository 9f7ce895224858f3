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

// Any mixture, in one order on all ranks: calls alone, and groups of several sizes.
TEST_CASE("unnamed groups are counted among the unnamed operations of their kind", "[unnamed]") {
  const int count = 60;
  for (const Kind kind : kTestedKinds) {
    const Rank size = 3;
    INFO(name_of(kind));
    RuntimeWorld world(kind, size);
    const auto wrong = world.run([&](Rank rank, engine::Runtime& runtime) {
      std::vector<Floats> data;
      std::vector<RequestPtr> works;
      data.reserve(1000);
      for (int i = 0; i < count; ++i) {
        std::vector<engine::Operation> calls;
        for (int k = 0; k <= i % 4; ++k) {
          data.emplace_back(static_cast<size_t>(1 + (i + k) % 5),
                            static_cast<float>(data.size() * (rank + 1)));
          calls.push_back(sum_of("", &data.back()));
        }
        for (RequestPtr& each : must(runtime.start(std::move(calls), i % 8 != 0)))
          works.push_back(std::move(each));
      }
      for (size_t i = 0; i < works.size(); ++i)  // each rank in an order of its own
        must(end_of(works[(i * 7 + static_cast<size_t>(rank) * 13) % works.size()]));
      int bad = 0;
      for (size_t i = 0; i < data.size(); ++i) {
        const auto sum = static_cast<float>(i * 6);
        for (const float value : data[i]) bad += value != sum ? 1 : 0;
      }
      return bad;
    });
    for (const int bad : wrong) CHECK(bad == 0);
  }
}

TEST_CASE("an unnamed tensor that meets an unnamed group is an error at once", "[unnamed]") {
  RuntimeWorld world(Kind::kShm, 2);
  for (int round = 0; round < 40; ++round) {  // more than there are numbers
    const auto told = world.run([&](Rank rank, engine::Runtime& runtime) -> std::string {
      const int few = 1 + round % 3, many = few + 1;
      const int mine = rank == round % 2 ? few : many;
      std::vector<Floats> data(static_cast<size_t>(mine), Floats(3, 1.0f));
      std::vector<engine::Operation> calls;
      for (Floats& values : data) calls.push_back(sum_of("", &values));
      const auto works = must(runtime.start(std::move(calls), true));
      std::string text;
      for (const RequestPtr& work : works) {
        const Status ended = end_of(work);
        if (ended.code() != Code::kFailedPrecondition) return "no error";
        if (work == works.front()) text = ended.message();
      }
      const std::string after = trouble_with_sum(runtime, "");
      return after.empty() ? text : after;
    });
    for (const std::string& text : told) {
      INFO(text);
      CHECK((has(text, "Mismatched groups") && has(text, "of " + std::to_string(2 + round % 3))));
      CHECK(has(text, round % 3 == 0 ? "outside a group" : "of " + std::to_string(1 + round % 3)));
    }
  }
}

TEST_CASE("unnamed operations and groups that still wait for their turn end with their rank",
          "[unnamed]") {
  RuntimeWorld world(Kind::kShm, 2);
  const auto ended = world.run([&](Rank rank, engine::Runtime& runtime) {
    if (rank == 1) return 0;  // submits nothing
    std::vector<Floats> data(60, Floats(3, 1.0f));
    std::vector<RequestPtr> works;
    for (size_t i = 0; i < data.size(); i += 3) {
      works.push_back(start(runtime, sum_of("", &data[i])));
      for (RequestPtr& each :
           must(runtime.start({sum_of("", &data[i + 1]), sum_of("", &data[i + 2])}, true)))
        works.push_back(std::move(each));
    }
    runtime.shutdown();
    int count = 0;
    for (const RequestPtr& work : works) count += end_of(work).code() == Code::kCancelled ? 1 : 0;
    return count;
  });
  CHECK(ended[0] == 60);
}

}  // namespace
}  // namespace rueda::testing

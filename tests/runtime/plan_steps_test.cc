// Training steps along the step plan, inside a host and between hosts: what a steady one costs.
#include <catch2/catch.hpp>

#include <chrono>
#include <memory>

#include "tests/runtime/steady_cost.h"

namespace rueda::testing {
namespace {

constexpr size_t kGradients = 161;  // ResNet-50's

// The compiler may not leave an allocation out whose pointer it has to store.
void* volatile kept = nullptr;

// Sizes like ResNet-50's, a thousandth of them: a few large among many small.
size_t elements_of(size_t t) { return t % 3 == 0 ? 16 + t * 12 : 8 + t % 5 * 32; }

std::vector<Sum> network(engine::Runtime& r, size_t count = kGradients) {
  std::vector<Sum> sums;
  sums.reserve(count);
  for (size_t t = 0; t < count; ++t)
    sums.emplace_back(r, "layer" + std::to_string(t) + ".weight.gradient", elements_of(t));
  return sums;
}

// Start all, then wait for all; true if every sum was right. Allocates nothing itself.
bool step(std::vector<Sum>* sums, Rank rank, Rank size, int number) {
  const auto value = [&](size_t t) {
    return static_cast<float>((t + static_cast<size_t>(number)) % 64);
  };
  for (size_t t = 0; t < sums->size(); ++t) (*sums)[t].start(static_cast<float>(rank) + value(t));
  bool right = true;
  for (size_t t = 0; t < sums->size(); ++t)
    right &= (*sums)[t].ends_with(sum_of_ranks(size, value(t)));
  return right;
}

// planted: each step of rank 0 allocates once, to see that it is noticed.
std::vector<SteadyCost> costs_of_network(Kind kind, Rank size, int warm_up, int steps,
                                         bool planted = false) {
  return steady_costs(kind, size, warm_up, steps, [=](Rank rank, engine::Runtime& r) {
    auto sums = std::make_shared<std::vector<Sum>>(network(r, is_short() ? 30 : kGradients));
    return [=](int number) {
      if (planted && rank == 0 && number >= warm_up) {
        kept = ::operator new(100);
        ::operator delete(kept);
      }
      return step(sums.get(), rank, size, number);
    };
  });
}

TEST_CASE("a steady step sends no message and allocates nothing", "[plan]") {
  const int steps = is_short() ? 20 : 200;
  struct Place {
    Kind kind;
    Rank size;
  };
  // Pairs of four: two hosts with two ranks each, over TCP.
  for (const Place& place : {Place{Kind::kShm, 2}, Place{Kind::kShm, 3}, Place{Kind::kPairs, 4},
                             Place{Kind::kTcp, 3}, Place{Kind::kInproc, 2}}) {
    INFO(name_of(place.kind) << ", " << place.size << " ranks");
    for (const SteadyCost& cost : costs_of_network(place.kind, place.size, 40, steps)) {
      INFO("allocations:\n" << cost.stacks);
      CHECK(cost.right);
      CHECK(cost.messages == 0);
      CHECK(cost.revocations == 0);
      CHECK(cost.planned >= steps);
      CHECK(cost.allocations == 0);
    }
  }
  // One allocation in each step would be seen.
  CHECK(costs_of_network(Kind::kShm, 2, 40, 10, true)[0].allocations >= 10);
}

// Times that the background thread wakes while gradients are held for their batch, one by one and
// with time between them for it to fall asleep again.
int64_t wakeups_while_held(engine::Runtime& r, Rank rank, Rank size) {
  constexpr size_t kHeld = 100;
  constexpr int kRounds = 30;
  constexpr std::chrono::microseconds kBetween{50};
  std::vector<Sum> sums = network(r, kHeld + 1);
  for (int number = 0; number < 40; ++number) {
    if (!step(&sums, rank, size, number)) return -1;
  }
  int64_t woken = 0;
  for (int round = 0; round < kRounds; ++round) {
    woken -= r.counter("wakeups");
    for (size_t t = 0; t < kHeld; ++t) {
      sums[t].start(1);
      for (const auto next = std::chrono::steady_clock::now() + kBetween;
           std::chrono::steady_clock::now() < next;) {
      }
    }
    woken += r.counter("wakeups");
    sums[kHeld].start(1);
    for (Sum& sum : sums) {
      if (!sum.ends_with(static_cast<float>(size))) return -1;
    }
  }
  return woken;
}

TEST_CASE("what is held for its batch wakes no thread", "[plan]") {
  RuntimeWorld world(Kind::kShm, 2, very_patient());
  for (const int64_t woken :
       world.run([](Rank rank, engine::Runtime& r) { return wakeups_while_held(r, rank, 2); })) {
    CHECK(woken >= 0);
    CHECK(woken <= 60);
  }
}

}  // namespace
}  // namespace rueda::testing

// What steps cost once they run along a step plan: control messages, batches, allocations.
#pragma once

#include <atomic>
#include <barrier>
#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/persistent_calls.h"
#include "tests/support/allocations.h"

namespace rueda::testing {

// Of one rank, but for the allocations, which are the whole process's.
struct SteadyCost {
  int64_t messages = 0;
  int64_t planned = 0;
  int64_t revocations = 0;
  int64_t allocations = 0;
  std::string stacks;  // of what allocated
  bool right = true;   // every step was
};

// Of `steps` steps after `warm_up` others. make(rank, runtime) gives what runs the step of a number
// and says whether its results were right; its memory stays until the measurement is over.
template <typename Make>
std::vector<SteadyCost> steady_costs(Kind kind, Rank size, int warm_up, int steps, Make make) {
  RuntimeWorld world(kind, size, very_patient());
  std::barrier meet(size);
  std::atomic<int64_t> before{0};
  std::atomic<int64_t> after{0};
  std::string stacks;
  return world.run([&](Rank rank, engine::Runtime& r) {
    SteadyCost cost;
    const std::function<bool(int)> step = make(rank, r);
    int number = 0;
    for (; number < warm_up; ++number) cost.right &= step(number);
    cost.messages = -r.counter("control_messages");
    cost.planned = -r.counter("planned_batches");
    cost.revocations = -r.counter("revocations");
    meet.arrive_and_wait();
    if (rank == 0) {
      trace_allocations();
      before = allocations_of_all_threads();
    }
    meet.arrive_and_wait();
    for (const int end = number + steps; number < end; ++number) cost.right &= step(number);
    meet.arrive_and_wait();
    if (rank == 0) {
      after = allocations_of_all_threads();
      stacks = traced_allocations();
    }
    meet.arrive_and_wait();
    cost.messages += r.counter("control_messages");
    cost.planned += r.counter("planned_batches");
    cost.revocations += r.counter("revocations");
    cost.allocations = after - before;
    cost.stacks = stacks;
    return cost;
  });
}

}  // namespace rueda::testing

// What rueda's host side costs for one planned bucket of GPU tensors, with a driver and an NCCL
// that do nothing: the submitting thread's part, and the communicator's, which gives the bucket to
// NCCL. Hidden, run as `device_test "[submit]"` on an idle machine; scripts/gpu_check has the
// figure of a real GPU.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/cuda/gpu_world.h"

namespace rueda::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Microseconds: the median, and what 9 of 10 stay below. The first ones are left out.
std::pair<double, double> spread(std::vector<double> times) {
  times.erase(times.begin(), times.begin() + std::ssize(times) / 6);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 9 / 10]};
}

TEST_CASE("host time to submit one planned bucket", "[.][submit]") {
  const Variable idle("FAKE_CUDA_IDLE", "1");
  for (const size_t tensors : {1, 4, 12}) {
    GpuWorld gpus(2);
    std::vector<std::vector<Floats>> data(2, std::vector<Floats>(tensors, Floats(1000)));
    const auto medians = gpus.world.run([&](Rank rank, Runtime& runtime) {
      std::vector<engine::RequestPtr> bucket;
      for (size_t i = 0; i < tensors; ++i) {
        Operation op =
            on_gpu(sum_of("g" + std::to_string(i), &data[static_cast<size_t>(rank)][i]), rank);
        bucket.push_back(make(runtime, op));
      }
      std::vector<double> times;
      for (int step = 0; step < 3000; ++step) {
        const auto begun = Clock::now();
        for (size_t i = 0; i < tensors; ++i) {
          auto* const memory =
              reinterpret_cast<std::byte*>(data[static_cast<size_t>(rank)][i].data());
          must(bucket[i]->start(memory, memory));
        }
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
        for (const auto& prepared : bucket) must(prepared->wait(kGenerous));
      }
      return spread(std::move(times));
    });
    CHECK(gpus.world[0].counter("planned_batches") > 2000);
    for (const auto& [median, slow] : medians) {
      std::printf(
          "%zu tensors in a planned bucket: %.1f us of the submitting thread, 90 %%: %.1f us\n",
          tensors, median, slow);
    }
  }
}

TEST_CASE("host time of a device communicator for one planned bucket", "[.][submit]") {
  const Variable idle("FAKE_CUDA_IDLE", "1");
  for (const size_t tensors : {1, 4, 12, 60}) {
    const auto spreads = on_device_ranks(2, [&](DeviceRank& here) {
      std::vector<Floats> data(tensors, Floats(1000));
      std::vector<Part> parts;
      for (Floats& one : data) {
        auto* const memory = reinterpret_cast<std::byte*>(one.data());
        parts.push_back({memory, memory, std::ssize(one)});
      }
      const Scaling scaling = must(plan_scaling(DType::kFloat32, ReduceOp::kAverage, 1, 1, 2));
      const CollectivePtr bucket = testing::allreduce(here.communicator, parts, DType::kFloat32,
                                                      ReduceOp::kAverage, scaling);
      auto ready = must(here.machine->prepare_mark(here.rank()));
      std::vector<double> times;
      for (int step = 0; step < 3000; ++step) {
        must(here.machine->mark_again(&ready, nullptr));
        nccl::StreamOrder order{here.rank(), {ready}, nullptr};
        if (step == 0) {  // meets the peer
          must(drive(here.world, here.communicator, *bucket, {nullptr, &order}));
          continue;
        }
        const auto begun = Clock::now();
        bucket->start({nullptr, &order});
        while (!bucket->test()) {
        }
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
        must(bucket->status());
      }
      return spread(std::move(times));
    });
    for (const auto& [median, slow] : spreads) {
      std::printf(
          "%zu tensors in a bucket: %.1f us of the communicator, without a GPU, 90 %%: %.1f us\n",
          tensors, median, slow);
      CHECK(median > 0);
    }
  }
}

}  // namespace
}  // namespace rueda::testing

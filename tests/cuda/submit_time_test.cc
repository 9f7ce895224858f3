// What rueda's host side costs for one planned bucket of GPU tensors, with a driver and an NCCL
// that do nothing: hidden, run as `device_test "[submit]"`; scripts/gpu_check has the figure of a
// real GPU.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/cuda/gpu_world.h"

namespace rueda::testing {
namespace {

using Clock = std::chrono::steady_clock;

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
      times.erase(times.begin(), times.begin() + 500);
      std::sort(times.begin(), times.end());
      return std::pair(times[times.size() / 2], times[times.size() * 9 / 10]);
    });
    CHECK(gpus.world[0].counter("planned_batches") > 2000);
    for (const auto& [median, slow] : medians) {
      std::printf(
          "%zu tensors in a planned bucket: %.1f us of the submitting thread, 90 %%: %.1f us\n",
          tensors, median, slow);
    }
  }
}

}  // namespace
}  // namespace rueda::testing

// Process sets on GPUs: parts that NCCL splits off the communicator of all ranks, without a GPU.
#include <catch2/catch.hpp>

#include "tests/cuda/gpu_world.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

using Catch::Contains;

int64_t told(const char* counter) {
  return reinterpret_cast<int64_t (*)()>(dlsym(dlopen(built::kStubNccl, RTLD_NOW), counter))();
}

// What the stub of NCCL was asked for since this was made.
struct Asked {
  const int64_t begun_before = told("stub_nccl_begun");
  const int64_t splits_before = told("stub_nccl_splits");
  const int64_t outsiders_before = told("stub_nccl_splits_without_color");
  int64_t begun() const { return told("stub_nccl_begun") - begun_before; }
  int64_t splits() const { return told("stub_nccl_splits") - splits_before; }
  int64_t outsiders() const { return told("stub_nccl_splits_without_color") - outsiders_before; }
};

uint32_t add(Runtime& runtime, const std::vector<int64_t>& ranks) {
  const RequestPtr added = must(runtime.add_process_set(ranks));
  must(end_of(added));
  return static_cast<uint32_t>(added->result());
}

// In ranks, which are threads.
void expect(bool right) {
  if (!right) throw Failure("wrong sum");
}

void remove(Runtime& runtime, uint32_t set) { must(end_of(must(runtime.remove_process_set(set)))); }

// The sum over the set of the ranks' numbers, on GPUs.
float sum_in(Runtime& runtime, Rank rank, uint32_t set, const std::string& name) {
  Floats data = filled(40, static_cast<float>(rank));
  Operation op = on_gpu(sum_of(name, &data), rank);
  op.process_set = set;
  must(finish(start(runtime, op)));
  return data.back();
}

TEST_CASE(
    "a process set that is added while GPUs are in use is split off: all ranks call, outsiders "
    "without a color") {
  const Asked asked;
  GpuWorld gpus(3);
  const auto results = gpus.world.run([](Rank rank, Runtime& runtime) {
    Floats sums = {sum_in(runtime, rank, 0, "all")};
    const uint32_t set = add(runtime, {1, 2});
    if (rank > 0) sums.push_back(sum_in(runtime, rank, set, "some"));
    sums.push_back(sum_in(runtime, rank, 0, "all again"));
    return sums;
  });
  CHECK(results[0] == Floats{3, 3});
  CHECK(results[1] == Floats{3, 3, 3});
  CHECK(results[2] == Floats{3, 3, 3});
  CHECK(asked.splits() == 3);
  CHECK(asked.outsiders() == 1);
  CHECK(asked.begun() == 3);  // of all ranks alone
}

TEST_CASE("a process set from before the first GPU tensor connects its members alone") {
  const Asked asked;
  GpuWorld gpus(3);
  gpus.world.run([](Rank rank, Runtime& runtime) {
    const uint32_t set = add(runtime, {0, 2});
    if (rank != 1) expect(sum_in(runtime, rank, set, "some") == 2);
    return 0;
  });
  CHECK(asked.splits() == 0);
  CHECK(asked.begun() == 2);
}

TEST_CASE("an NCCL without a split, on one rank or on all, gives sets communicators of their own") {
  Config old = gpu_config();
  old.nccl_library = built::kStubNcclOld;
  GpuWorld gpus(3, Kind::kShm, old);
  gpus.world.run([](Rank rank, Runtime& runtime) {
    expect(sum_in(runtime, rank, 0, "all") == 3);
    const uint32_t set = add(runtime, {1, 2});
    if (rank > 0) expect(sum_in(runtime, rank, set, "some") == 3);
    return 0;
  });
}

TEST_CASE("sets come and go while all ranks and other sets use their GPUs") {
  const Kind kind = GENERATE(Kind::kShm, Kind::kTcp);
  const Asked asked;
  GpuWorld gpus(4, kind);
  const auto wrong = gpus.world.run([](Rank rank, Runtime& runtime) {
    int errors = sum_in(runtime, rank, 0, "all") != 6;
    for (int round = 0; round < 5; ++round) {
      Floats moving = filled(3000, 1);
      const RequestPtr under_way = start(runtime, on_gpu(sum_of("under way", &moving), rank));
      const uint32_t low = add(runtime, {0, 1, 2});
      const uint32_t high = add(runtime, {2, 3});
      for (int step = 0; step < 3; ++step) {
        if (rank < 3) errors += sum_in(runtime, rank, low, "low") != 3;
        if (rank > 1) errors += sum_in(runtime, rank, high, "high") != 5;
        errors += sum_in(runtime, rank, 0, "all") != 6;
      }
      must(finish(under_way));
      errors += moving.back() != 4;
      remove(runtime, high);
      remove(runtime, low);
    }
    return errors;
  });
  for (const int errors : wrong) CHECK(errors == 0);
  CHECK(asked.splits() == 4 * 2 * 5);
  CHECK(asked.begun() % 4 == 0);  // all ranks', once more where a plan is in force
}

TEST_CASE("a set that cannot be added splits nothing, and what comes after works") {
  const Asked asked;
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([](Rank rank, Runtime& runtime) {
    expect(sum_in(runtime, rank, 0, "all") == 1);
    const std::string text = end_of(must(runtime.add_process_set({0, 1}))).message();
    expect(sum_in(runtime, rank, 0, "again") == 1);
    return text;
  });
  for (const auto& text : texts) CHECK_THAT(text, Contains("same ranks exists already"));
  CHECK(asked.splits() == 0);
}

TEST_CASE("a set that is removed before it has used a GPU lets go of its part") {
  GpuWorld gpus(3);
  gpus.world.run([](Rank rank, Runtime& runtime) {
    expect(sum_in(runtime, rank, 0, "all") == 3);
    remove(runtime, add(runtime, {0, 2}));
    expect(sum_in(runtime, rank, 0, "again") == 3);
    return 0;
  });
}

TEST_CASE(
    "a split that fails or hangs names the rank and the set on all ranks, and nobody waits for "
    "ever") {
  const std::string how = GENERATE("error", "async", "hang");
  const Variable fault("STUB_NCCL_FAULT", "ncclCommSplit:1:1:" + how);
  Config config = gpu_config();
  config.start_timeout_seconds = how == "hang" ? 4 : 60;
  GpuWorld gpus(3, Kind::kShm, config);
  const auto texts = gpus.world.run([](Rank rank, Runtime& runtime) {
    expect(sum_in(runtime, rank, 0, "all") == 3);
    const auto set = runtime.add_process_set({1, 2});
    if (set.ok()) (void)end_of(set.value());
    for (;;) {  // rank 0 hears of it by its next call, whatever it is
      Floats data = filled(4, 1);
      auto works = runtime.start({sum_of("on the host", &data)}, false);
      const Status status = works.ok() ? end_of(works->front()) : works.status();
      if (!status.ok()) return status.message();
    }
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text, Contains("process set 1 (ranks 1, 2)"));
    if (how != "hang") CHECK_THAT(text, Contains("rank 1"));
    if (how == "error")
      CHECK_THAT(text, Contains("ncclCommSplit for") && Contains("injected error"));
    if (how == "async") CHECK_THAT(text, Contains("remote process exited"));
    if (how == "hang") CHECK_THAT(text, Contains("RUEDA_START_TIMEOUT"));
  }
}

}  // namespace
}  // namespace rueda::testing

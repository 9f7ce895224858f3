// Virtual ranks over the CPU's leaves, with copies that come as late as a stream may be.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "attention/device_calls.h"
#include "attention/executor.h"
#include "attention/virtual_world.h"
#include "tests/attention/program_world.h"

namespace rueda::testing {
using namespace attention;
namespace {

// As a GPU's stream at its worst: a copy happens only when somebody waits for it, so that whoever
// reads what he has not waited for, or gives up what is still to be read, computes with other
// numbers.
class LateCopies final : public Copies {
 public:
  Result<Point> copy(const std::byte* from, std::byte* to, int64_t bytes) override {
    pending_.push_back({from, to, bytes, false});
    return Point(std::make_shared<size_t>(pending_.size()));
  }
  Status wait(const Point& point) override {
    const size_t end = *static_cast<const size_t*>(point.get());
    for (size_t i = 0; i < end; ++i) {  // of one stream: in order
      Pending& one = pending_[i];
      if (!one.done) std::copy_n(one.from, one.bytes, one.to);
      one.done = true;
    }
    return {};
  }
  size_t count() const { return pending_.size(); }

 private:
  struct Pending {
    const std::byte* from;
    std::byte* to;
    int64_t bytes;
    bool done;
  };
  std::vector<Pending> pending_;
};

// Memory of the test's own: what is given back is filled with NaN.
class PoisonedWork final : public Work {
 public:
  PoisonedWork(const AttentionPlan& plan, const Program& program)
      : leaves_(plan, program, {1, &kernels_}) {}
  Result<std::byte*> take(int slot, int64_t bytes) override {
    Bytes& memory = slots_[slot];
    memory.assign(static_cast<size_t>(bytes) + 64, kPoison);
    return memory.data();
  }
  void give(int slot, std::byte*) override {
    std::fill(slots_[slot].begin(), slots_[slot].end(), kPoison);
  }
  Status perform(int, const Instruction& one, std::span<std::byte* const> memory) override {
    leaves_.perform(one, memory);
    return {};
  }

 private:
  static constexpr std::byte kPoison{0xff};
  const Kernels kernels_;
  Leaves leaves_;
  std::map<int, Bytes> slots_;
};

// All ranks in turns. The number of copies.
size_t run_virtually(std::vector<ProgramWorld::Member>* members) {
  LateCopies copies;
  VirtualWorld world(static_cast<Rank>(members->size()), &copies);
  struct One {
    std::unique_ptr<Messages> messages;
    std::unique_ptr<PoisonedWork> work;
    std::unique_ptr<Executor> executor;
    bool ended = false;
  };
  std::vector<One> ranks;
  for (auto& [plan, program, tensors] : *members) {
    One one;
    one.messages = world.messages_of(program.rank, program);
    one.work = std::make_unique<PoisonedWork>(*plan, program);
    one.executor = std::make_unique<Executor>(program, one.messages.get(), one.work.get());
    for (auto& [role, memory] : tensors) one.executor->give(role, memory.data());
    ranks.push_back(std::move(one));
  }
  for (int round = 0; round < 10000; ++round) {
    bool all = true;
    for (One& one : ranks) {
      if (!one.ended) one.ended = must(one.executor->go_on());
      all = all && one.ended;
    }
    if (all) break;
  }
  for (const One& one : ranks) CHECK(one.ended);
  must(world.join());
  return copies.count();
}

}  // namespace

TEST_CASE("copies of virtual ranks are waited for, whatever the scheme", "[attention]") {
  size_t copies = 0;
  for (int trial = 0; trial < (is_short() ? 10 : 60); ++trial) {
    SpecMaker maker(static_cast<uint64_t>(trial) + 900);
    const AttentionSpec spec = maker.spec(60, 6);
    const Problem problem = make_problem(spec, static_cast<uint64_t>(trial));
    AttentionWorld world(spec.ranks);
    const Answer executed = world.solve(problem);
    const Answer answer = answer_of(problem, [&](std::vector<ProgramWorld::Member>* members) {
      copies += run_virtually(members);
      return true;
    });
    INFO("trial " << trial << ", ranks " << spec.ranks << ", ulysses " << spec.ulysses);
    CHECK(answer.out == executed.out);
    CHECK(answer.lse == executed.lse);
    CHECK(answer.dq == executed.dq);
    CHECK(answer.dk == executed.dk);
    CHECK(answer.dv == executed.dv);
  }
  CHECK(copies > 100);
}

// Hidden, run as `attention_test "[instructions]"` with RUEDA_CUDA_DRIVER=tests/cuda/fake_cuda.so
// and FAKE_CUDA_IDLE=1: what the host pays for an instruction of a GPU's program, kernels left out.
TEST_CASE("host time of an instruction of a GPU's program", "[.][instructions]") {
  const char* const file = std::getenv("RUEDA_CUDA_DRIVER");
  REQUIRE(file != nullptr);
  const auto device = must(cuda::Device::open(must(cuda::DriverApi::open(file)), 0));
  AttentionSpec spec;
  spec.length = 64 * 1024;
  spec.ranks = 8;
  spec.heads = spec.kv_heads = 8;
  spec.head_dim = 128;
  spec.dtype = spec.kv_wire = DType::kBFloat16;
  spec.layout = Layout::kZigzag;
  spec.mask.causal = true;
  spec.rotate_forward = spec.rotate_backward = Rotate::kKeysAndValues;
  spec.chunk_tokens = int64_t{1} << 40;
  std::vector<AttentionPlan> plans;
  for (Rank rank = 0; rank < spec.ranks; ++rank) plans.push_back(plan_of(spec, rank));
  std::vector<const AttentionPlan*> all;
  for (const AttentionPlan& plan : plans) all.push_back(&plan);
  static std::byte memory[64];
  DeviceKernels kernels;
  kernels.device = 0;
  kernels.take = [](void*, int32_t, int32_t, int64_t) { return static_cast<void*>(memory); };
  kernels.give = [](void*, int32_t, int32_t) {};
  kernels.perform = [](void*, int32_t, int32_t) { return 0; };
  for (const bool backward : {false, true}) {
    size_t instructions = 0;
    for (const AttentionPlan& plan : plans)
      instructions += program_of(plan, backward, true).list.size();
    std::vector<double> times;
    std::vector<int64_t> sent;
    for (int i = 0; i < 300; ++i) {
      const auto begun = std::chrono::steady_clock::now();
      must(run_virtual(all, backward, device, kernels, &sent));
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - begun;
      times.push_back(time.count() / static_cast<double>(instructions));
    }
    std::sort(times.begin(), times.end());
    std::printf("%s, 8 virtual ranks: %.2f us for each of %zu instructions, 90 %%: %.2f us\n",
                backward ? "backward" : "forward", times[150], instructions, times[270]);
  }
}

}  // namespace rueda::testing

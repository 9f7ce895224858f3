// Step plans and persistent requests of GPU tensors, without a GPU.
#include <catch2/catch.hpp>

#include "tests/cuda/gpu_world.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

using Catch::Contains;

// A step of `count` sums of tensors of different sizes; says how many came out wrong.
int sum_step(Rank rank, Runtime& runtime, int step, size_t count, bool on_host = false) {
  std::vector<Floats> data;
  std::vector<RequestPtr> works;
  for (size_t i = 0; i < count; ++i)
    data.push_back(filled(10 + 300 * i, static_cast<float>(step + rank) + static_cast<float>(i)));
  for (size_t i = 0; i < count; ++i) {
    const Operation op = sum_of((on_host ? "h" : "t") + std::to_string(i), &data[i]);
    works.push_back(start(runtime, on_host ? op : on_gpu(op, rank)));
  }
  int wrong = 0;
  const Rank size = runtime.membership().size;
  for (size_t i = 0; i < count; ++i) {
    must(finish(works[i]));
    const float expected =
        static_cast<float>(size) * (static_cast<float>(step) + static_cast<float>(i)) +
        static_cast<float>(size * (size - 1)) / 2;
    wrong += data[i].front() != expected || data[i].back() != expected;
    wrong += (works[i]->device_end() == nullptr) != on_host;
  }
  return wrong;
}

TEST_CASE("GPU tensors that come again and again are planned: no message, the right sums") {
  const Rank size = GENERATE(2, 3);
  const Kind kind = GENERATE(Kind::kShm, Kind::kTcp, Kind::kHybrid);  // within a host and between
  INFO(name_of(kind));
  GpuWorld gpus(size, kind);
  const auto wrong = gpus.world.run([](Rank rank, Runtime& runtime) {
    int errors = 0;
    for (int step = 0; step < 40; ++step) {
      errors += sum_step(rank, runtime, step, 5);
      errors += sum_step(rank, runtime, step, 2, true);
    }
    return errors;
  });
  for (const int errors : wrong) CHECK(errors == 0);
  for (Rank rank = 0; rank < size; ++rank) {
    Runtime& runtime = gpus.world[rank];
    CHECK(runtime.counter("plans") == 1);
    CHECK(runtime.counter("revocations") == 0);
    CHECK(runtime.counter("planned_batches") > 30);
    CHECK(runtime.counter("fused_tensors") > 100);
  }
  const int64_t before = gpus.world[0].counter("control_messages");
  gpus.world.run([](Rank rank, Runtime& runtime) {
    for (int step = 0; step < 10; ++step) {
      sum_step(rank, runtime, step, 5);
      sum_step(rank, runtime, step, 2, true);
    }
    return 0;
  });
  CHECK(gpus.world[0].counter("control_messages") == before);
}

TEST_CASE("broadcasts and reducescatters of GPU tensors are planned too") {
  GpuWorld gpus(2);
  const auto wrong = gpus.world.run([](Rank rank, Runtime& runtime) {
    int errors = 0;
    for (int step = 0; step < 20; ++step) {
      const auto value = static_cast<float>(step + rank);
      Floats sent = filled(70, value);
      Operation op = operation(CollectiveKind::kBroadcast, "b", sent, &sent);
      op.root = 1;
      must(finish(start(runtime, on_gpu(op, rank))));
      errors += sent != filled(70, static_cast<float>(step + 1));
      const Floats in = filled(30, value);
      Floats out(15);
      must(finish(
          start(runtime, on_gpu(operation(CollectiveKind::kReducescatter, "s", in, &out), rank))));
      errors += out != filled(15, static_cast<float>(2 * step + 1));
    }
    return errors;
  });
  for (const int errors : wrong) CHECK(errors == 0);
  CHECK(gpus.world[1].counter("planned_batches") > 10);
}

TEST_CASE("a persistent GPU request waits for its stream each time, and streams wait for it") {
  GpuWorld gpus(2);
  const auto wrong = gpus.world.run([](Rank rank, Runtime& runtime) {
    UserStream user(must(runtime.machine().device(rank)));
    Floats data(256);
    const auto request = make(runtime, on_gpu(sum_of("x", &data), rank, user.handle()));
    auto* const memory = reinterpret_cast<std::byte*>(data.data());
    int errors = 0;
    for (int step = 0; step < 30; ++step) {
      std::promise<void> gate;
      user.run([&, step, open = gate.get_future().share()] {
        open.wait();
        std::fill(data.begin(), data.end(), static_cast<float>(step + rank));
      });
      must(request->start(memory, memory, user.handle()));
      must(request->wait(kGenerous));
      errors += request->released();  // the gate is closed
      must(request->make_wait(user.handle()));
      float seen = 0;
      user.run([&] { seen = data[255]; });
      gate.set_value();
      must(user.mark()->wait());
      errors += seen != static_cast<float>(2 * step + 1);
      errors += !request->released();
    }
    must(request->run(memory, memory, user.handle()));
    errors += !request->released();
    return errors;
  });
  for (const int errors : wrong) CHECK(errors == 0);
  CHECK(gpus.world[0].counter("planned_batches") > 20);
}

TEST_CASE("a rank that deviates from the plan brings GPU tensors back to negotiation") {
  GpuWorld gpus(3);
  const auto wrong = gpus.world.run([](Rank rank, Runtime& runtime) {
    int errors = 0;
    for (int round = 0; round < 6; ++round) {
      for (int step = 0; step < 12; ++step) errors += sum_step(rank, runtime, step, 4);
      errors += sum_step(rank, runtime, 0, 2);  // two do not come this time
      Floats other = filled(3, 1);              // another shape under a planned name
      must(finish(start(runtime, on_gpu(sum_of("t0", &other), rank))));
      errors += other[0] != 3;
    }
    return errors;
  });
  for (const int errors : wrong) CHECK(errors == 0);
  CHECK(gpus.world[0].counter("revocations") > 0);
}

TEST_CASE(
    "what no GPU can do stays an error on all ranks when it is planned, and the job goes on") {
  Config config = gpu_config();
  config.cuda_kernels = "none";
  GpuWorld gpus(2, Kind::kShm, config);
  const auto errors = gpus.world.run([](Rank rank, Runtime& runtime) {
    int missing = 0;
    for (int step = 0; step < 20; ++step) {
      Floats data = filled(8, 1);
      Operation op = on_gpu(sum_of("small", &data), rank);
      op.dtype = DType::kInt16;
      const Status status = finish(start(runtime, op));
      missing +=
          status.code() != Code::kUnimplemented || !has(status.message(), "allreduce 'small'");
    }
    return missing + sum_step(rank, runtime, 1, 2);
  });
  for (const int missing : errors) CHECK(missing == 0);
  CHECK(gpus.world[0].counter("planned_batches") > 0);
}

TEST_CASE("an error of a planned batch on the GPU ends the job on all ranks") {
  const Variable fault("STUB_NCCL_FAULT", "ncclAllReduce:1:25:async");
  Floats data[2] = {filled(4, 1), filled(4, 1)};  // the GPU may use it until NCCL's work is aborted
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& runtime) {
    for (;;) {
      auto works = runtime.start({on_gpu(sum_of("next", &data[rank]), rank)}, false);
      const Status status = works.ok() ? end_of(works->front()) : works.status();
      if (!status.ok()) return status.message();
    }
  });
  for (const std::string& text : texts)
    CHECK_THAT(text, Contains("rank 1") && Contains("remote process exited"));
}

TEST_CASE("GPU events are given out again and go with their device") {
  auto driver = must(cuda::DriverApi::open(built::kFakeCuda));
  auto device = must(cuda::Device::open(driver, 0));
  const auto live =
      reinterpret_cast<int64_t (*)()>(dlsym(dlopen(built::kFakeCuda, RTLD_NOW), "fake_cuda_live"));
  const int64_t before = live();
  for (int i = 0; i < 5; ++i) must(cuda::Event::create(device));
  CHECK(live() == before + 1);
  device.reset();
  CHECK(live() == before - 1);
}

TEST_CASE("of marks of one stream the last one is kept") {
  std::vector<cuda::Mark> marks;
  const auto stream = [](uintptr_t number) { return reinterpret_cast<cuda::StreamHandle>(number); };
  cuda::add_mark(&marks, {nullptr, stream(64), 3});
  cuda::add_mark(&marks, {nullptr, stream(64), 5});
  cuda::add_mark(&marks, {nullptr, stream(64), 4});
  cuda::add_mark(&marks, {nullptr, stream(128), 1});
  REQUIRE(marks.size() == 2);
  CHECK(marks[0].number == 5);
  cuda::add_mark(&marks, {nullptr, stream(2), 0});  // another stream on each thread
  cuda::add_mark(&marks, {nullptr, stream(2), 0});
  CHECK(marks.size() == 4);
}

}  // namespace
}  // namespace rueda::testing

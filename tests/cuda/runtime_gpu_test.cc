// GPU tensors through the whole runtime, without a GPU: agreement, fusion, streams, errors, ends.
#include <catch2/catch.hpp>

#include "tests/cuda/gpu_world.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

using Catch::Contains;

TEST_CASE("GPU and CPU tensors mixed in one job, step after step, give the right sums") {
  const Kind kind = GENERATE(Kind::kShm, Kind::kTcp);
  GpuWorld gpus(3, kind);
  const auto wrong = gpus.world.run([](Rank rank, Runtime& runtime) {
    int errors = 0;
    for (int step = 0; step < 12; ++step) {
      std::vector<Floats> data;
      std::vector<RequestPtr> works;
      for (size_t i = 0; i < 6; ++i)
        data.push_back(
            filled(50 + 400 * i, static_cast<float>(step + rank) + static_cast<float>(i)));
      for (size_t i = 0; i < data.size(); ++i) {
        Operation op = sum_of("t" + std::to_string(i), &data[i]);
        works.push_back(start(runtime, i < 3 ? on_gpu(op, rank) : op));
      }
      for (size_t i = 0; i < works.size(); ++i) {
        must(finish(works[i]));
        errors += (works[i]->device_end() != nullptr) != (i < 3);
        const float expected = 3 * static_cast<float>(step) + 3 + 3 * static_cast<float>(i);
        errors += data[i].front() != expected || data[i].back() != expected;
      }
    }
    return errors;
  });
  for (const int errors : wrong) CHECK(errors == 0);
  CHECK(gpus.world[0].counter("fused_tensors") > 0);
}

TEST_CASE(
    "a request ends when the GPU has it: the host waits for no stream, streams wait for each "
    "other") {
  GpuWorld gpus(2);
  const auto results = gpus.world.run([](Rank rank, Runtime& runtime) {
    UserStream user(must(runtime.machine().device(rank)));
    std::promise<void> gate;
    Floats data(64, -1);
    user.run([&, open = gate.get_future().share()] {
      open.wait();
      std::fill(data.begin(), data.end(), 1.0f + static_cast<float>(rank));
    });
    const RequestPtr work = start(runtime, on_gpu(sum_of("x", &data), rank, user.handle()));
    must(end_of(work));
    const bool early = must(work->device_end()->query());
    must(work->device_end()->make_wait(user.handle()));
    float seen = 0;
    user.run([&] { seen = data[63]; });
    gate.set_value();
    must(user.mark()->wait());
    return std::pair(early, seen);
  });
  for (const auto& [early, seen] : results) {
    CHECK_FALSE(early);
    CHECK(seen == 3.0f);
  }
}

TEST_CASE("a tensor on a GPU here and on the CPU there is an error on all, and the job goes on") {
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([](Rank rank, Runtime& runtime) {
    Floats data = filled(4, 1);
    Operation op = sum_of("x", &data);
    const Status status = call(runtime, rank == 0 ? op : on_gpu(op, rank));
    must(finish(start(runtime, on_gpu(sum_of("y", &data), rank))));
    return status.message() + (data[0] == 2 ? "" : "wrong sum");
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text, Contains("Mismatched CPU/GPU device selection") &&
                         Contains("rank 0 sent a CPU tensor; rank 1 sent a GPU tensor"));
    CHECK(text.find("wrong") == std::string::npos);
  }
}

TEST_CASE("results of unknown size lie on the GPU and belong to the work") {
  GpuWorld gpus(3);
  const auto results = gpus.world.run([](Rank rank, Runtime& runtime) {
    const Floats in(static_cast<size_t>(rank) + 1, static_cast<float>(rank));
    const RequestPtr gathered =
        start(runtime, on_gpu(operation(CollectiveKind::kAllgather, "g", in, nullptr), rank));
    must(finish(gathered));
    Floats out = result_of(gathered);
    const Floats six = filled(6, static_cast<float>(rank));
    Operation exchange = on_gpu(operation(CollectiveKind::kAlltoall, "a", six, nullptr), rank);
    exchange.splits = {1, 2, 3};
    const RequestPtr exchanged = start(runtime, exchange);
    must(finish(exchanged));
    const Floats more = result_of(exchanged);
    out.insert(out.end(), more.begin(), more.end());
    return out;
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    Floats expected = {0, 1, 1, 2, 2, 2};
    for (const float from : {0.0f, 1.0f, 2.0f}) expected.insert(expected.end(), rank + 1, from);
    CHECK(results[rank] == expected);
  }
}

TEST_CASE("process sets have NCCL communicators of their own") {
  GpuWorld gpus(3);
  const auto results = gpus.world.run([](Rank rank, Runtime& runtime) {
    const RequestPtr added = must(runtime.add_process_set({1, 2}));
    must(end_of(added));
    Floats all = filled(4, static_cast<float>(rank));
    Floats some = all;
    must(finish(start(runtime, on_gpu(sum_of("all", &all), rank))));
    if (rank > 0) {
      Operation op = on_gpu(sum_of("some", &some), rank);
      op.process_set = static_cast<uint32_t>(added->result());
      must(finish(start(runtime, op)));
    }
    return std::pair(all[0], some[0]);
  });
  CHECK(results[0] == std::pair(3.0f, 0.0f));
  CHECK(results[1] == std::pair(3.0f, 3.0f));
  CHECK(results[2] == std::pair(3.0f, 3.0f));
}

TEST_CASE("CPU tensors keep their step plan while other GPU tensors are negotiated beside it") {
  GpuWorld gpus(2);
  gpus.world.run([](Rank rank, Runtime& runtime) {
    Floats host = filled(100, 1);
    Floats device = filled(100, 1);
    for (int step = 0; step < 200; ++step) {
      const RequestPtr a = start(runtime, sum_of("host", &host));
      must(end_of(a));
      if (step % 10 == 0) must(finish(start(runtime, on_gpu(sum_of("device", &device), rank))));
    }
    return 0;
  });
  CHECK(gpus.world[0].counter("planned_batches") > 0);
}

TEST_CASE("without a driver a GPU tensor is refused with the reason, and CPU tensors work") {
  Config config = gpu_config();
  config.cuda_driver = "/nowhere/libcuda.so.1";
  GpuWorld gpus(1, Kind::kShm, config);
  Floats data = filled(4, 1);
  const auto refused = gpus.world[0].start({on_gpu(sum_of("x", &data), 0)}, false);
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(refused.status().message(),
             Contains("allreduce 'x'") && Contains("the CUDA driver cannot be opened"));
  CHECK(call(gpus.world[0], sum_of("y", &data)).ok());
  Operation barrier;
  barrier.kind = CollectiveKind::kBarrier;
  CHECK(call(gpus.world[0], on_gpu(barrier, 0)).ok());  // touches no GPU
}

TEST_CASE("what is not available on GPUs yet says so") {
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([](Rank rank, Runtime& runtime) {
    Floats data = filled(4, 1);
    std::vector<std::string> said;
    must(finish(start(runtime, on_gpu(sum_of("first", &data), rank))));
    said.push_back(runtime.start({on_gpu(sum_of("o", &data), 7)}, false).status().message());
    Operation adasum = on_gpu(sum_of("a", &data), rank);
    adasum.reduce_op = ReduceOp::kAdasum;
    adasum.dtype = DType::kFloat64;
    adasum.shape = {2};
    said.push_back(call(runtime, adasum).message());
    return said;
  });
  for (const auto& said : texts) {
    CHECK_THAT(said[0], Contains("a tensor on GPU 7, but this rank has used GPU"));
    CHECK_THAT(said[1], Contains("Adasum of float64 is not available on GPUs"));
  }
}

TEST_CASE("an operation with a joined rank is an error, not a hang") {
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([](Rank rank, Runtime& runtime) {
    Operation join;
    join.kind = CollectiveKind::kJoin;
    Floats data = filled(4, 1);
    std::string text;
    if (rank == 0) text = call(runtime, on_gpu(sum_of("x", &data), rank)).message();
    must(call(runtime, join));
    return text;
  });
  CHECK_THAT(texts[0], Contains("rank 1") && Contains("nobody stands in for it with a GPU tensor"));
}

TEST_CASE("an error of the GPU's work ends the job on all ranks with NCCL's text") {
  const Variable fault("STUB_NCCL_FAULT", "ncclAllReduce:1:2:async");
  Floats data[2] = {filled(4, 1), filled(4, 1)};  // the GPU may use it until NCCL's work is aborted
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& runtime) {
    must(finish(start(runtime, on_gpu(sum_of("first", &data[rank]), rank))));
    // The second is given to the GPU; sooner or later a call fails.
    for (;;) {
      auto works = runtime.start({on_gpu(sum_of("next", &data[rank]), rank)}, false);
      const Status status = works.ok() ? end_of(works->front()) : works.status();
      if (!status.ok()) return status.message();
    }
  });
  for (const std::string& text : texts)
    CHECK_THAT(text, Contains("rank 1") && Contains("remote process exited"));
}

TEST_CASE("leaving waits for what was given to the GPU, within bounds") {
  Floats data[2] = {filled(1000, 1), filled(1000, 2)};
  std::promise<void> gate;
  {
    GpuWorld gpus(2);
    UserStream slow(must(gpus.world[0].machine().device(0)));
    slow.run([open = gate.get_future().share()] { open.wait(); });
    gpus.world.run([&](Rank rank, Runtime& runtime) {
      must(end_of(start(
          runtime, on_gpu(sum_of("x", &data[rank]), rank, rank == 0 ? slow.handle() : nullptr))));
      return 0;
    });
    gate.set_value();
  }
  for (const Floats& result : data) CHECK(result[999] == 3);
}

TEST_CASE("who is done first keeps NCCL until the others' GPUs are, too") {
  const auto torn =
      reinterpret_cast<int64_t (*)()>(dlsym(dlopen(built::kStubNccl, RTLD_NOW), "stub_nccl_torn"));
  const int64_t before = torn();
  std::vector<Floats> data(3, Floats(1000, 1));  // the GPUs use them to the end
  GpuWorld gpus(3);
  const Variable slow("STUB_NCCL_FAULT", "ncclAllReduce:1:1:slow");
  gpus.world.run([&](Rank rank, Runtime& runtime) {
    const RequestPtr work =
        start(runtime, on_gpu(sum_of("last", &data[static_cast<size_t>(rank)]), rank));
    must(end_of(work));
    runtime.shutdown();
    return 0;
  });
  CHECK(torn() == before);
  for (const Floats& sums : data) CHECK(sums.back() == 3.0f);
}

}  // namespace
}  // namespace rueda::testing

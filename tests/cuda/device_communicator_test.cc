// The collectives of GPU tensors on the stub of NCCL: results, order of streams, errors, ends.
#include <catch2/catch.hpp>

#include <chrono>
#include <latch>
#include <thread>

#include "tests/cuda/device_world.h"
#include "tests/runtime/runtime_calls.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

using nccl::DeviceCommunicator;
using Floats = std::vector<float>;
using Catch::Contains;

std::byte* bytes(Floats& data) { return reinterpret_cast<std::byte*>(data.data()); }

Floats ramp(Rank rank, size_t count) {
  Floats data(count);
  for (size_t i = 0; i < count; ++i)
    data[i] = static_cast<float>(i % 64) + static_cast<float>(rank);
  return data;
}

auto allreduce(Floats& data, ReduceOp op, double prescale = 1, double postscale = 1) {
  return [&data, op, prescale, postscale](DeviceCommunicator& c) {
    return testing::allreduce(
        c, {{bytes(data), bytes(data), static_cast<int64_t>(data.size())}}, DType::kFloat32, op,
        must(plan_scaling(DType::kFloat32, op, prescale, postscale, c.size())));
  };
}

TEST_CASE("allreduce of GPU tensors gives every rank the sum, the average, the extremes") {
  const Rank size = GENERATE(1, 2, 3, 5);
  const auto results = on_device_ranks(size, [](DeviceRank& here) {
    std::vector<Floats> all;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
      all.push_back(ramp(here.rank(), 40000));
      here.finish(allreduce(all.back(), op));
    }
    all.push_back(ramp(here.rank(), 7));
    here.finish(allreduce(all.back(), ReduceOp::kSum, 2.0, 0.25));
    return all;
  });
  const float ranks = static_cast<float>(size);
  const float others = ranks * (ranks - 1) / 2;
  for (const auto& all : results) {
    for (const size_t i : {size_t{0}, size_t{63}, size_t{39999}}) {
      const float own = static_cast<float>(i % 64);
      CHECK(all[0][i] == ranks * own + others);
      CHECK(all[1][i] == (ranks * own + others) / ranks);
      CHECK(all[2][i] == own);
      CHECK(all[3][i] == own + ranks - 1);
    }
    CHECK(all[4][5] == (ranks * 5 + others) * 0.5f);
  }
}

TEST_CASE("several tensors are one group, empty ones are left out") {
  const auto results = on_device_ranks(2, [](DeviceRank& here) {
    Floats a = ramp(here.rank(), 3);
    Floats b;
    Floats c = ramp(here.rank(), 5);
    here.finish([&](DeviceCommunicator& comm) {
      return testing::allreduce(
          comm, {{bytes(a), bytes(a), 3}, {bytes(b), bytes(b), 0}, {bytes(c), bytes(c), 5}},
          DType::kFloat32, ReduceOp::kSum, {});
    });
    a.insert(a.end(), c.begin(), c.end());
    return a;
  });
  for (const Floats& result : results) CHECK(result == Floats{1, 3, 5, 1, 3, 5, 7, 9});
}

TEST_CASE("gathering, scattering, exchanging and broadcasting, in equal and unequal parts") {
  const Rank size = 3;
  const auto results = on_device_ranks(size, [&](DeviceRank& here) {
    const auto me = static_cast<size_t>(here.rank());
    std::vector<Floats> all;
    for (const std::vector<int64_t>& rows : {std::vector<int64_t>{2, 2, 2}, {1, 0, 3}}) {
      Floats in(static_cast<size_t>(rows[me]), static_cast<float>(me));
      Floats out(static_cast<size_t>(rows[0] + rows[1] + rows[2]), -1);
      here.finish([&](DeviceCommunicator& c) {
        return testing::allgather(
            c, {{bytes(in), bytes(out), {4 * rows[0], 4 * rows[1], 4 * rows[2]}}});
      });
      all.push_back(out);
      Floats whole = ramp(here.rank(), static_cast<size_t>(rows[0] + rows[1] + rows[2]));
      Floats share(static_cast<size_t>(rows[me]), -1);
      here.finish([&](DeviceCommunicator& c) {
        return testing::reducescatter(c, bytes(whole), bytes(share), rows, DType::kFloat32,
                                      ReduceOp::kSum, {});
      });
      all.push_back(share);
    }
    Floats told = ramp(here.rank(), 4);
    here.finish([&](DeviceCommunicator& c) {
      return testing::broadcast(c, 1, {{bytes(told), bytes(told), 16}});
    });
    all.push_back(told);
    // From rank r to rank s: r + s elements.
    Floats sent;
    std::vector<int64_t> matrix;
    for (int r = 0; r < size; ++r) {
      for (int s = 0; s < size; ++s) matrix.push_back(4 * (r + s));
    }
    for (size_t s = 0; s < 3; ++s) sent.insert(sent.end(), me + s, static_cast<float>(10 * me + s));
    Floats received(3 * me + 3, -1);
    here.finish([&](DeviceCommunicator& c) {
      return testing::alltoall(c, bytes(sent), bytes(received), matrix);
    });
    all.push_back(received);
    return all;
  });
  for (size_t me = 0; me < 3; ++me) {
    const auto& all = results[me];
    CHECK(all[0] == Floats{0, 0, 1, 1, 2, 2});
    for (size_t i = 0; i < 2; ++i) CHECK(all[1][i] == 3.0f * static_cast<float>(2 * me + i) + 3);
    CHECK(all[2] == Floats{0, 2, 2, 2});
    CHECK(all[3].size() == std::vector<size_t>{1, 0, 3}[me]);
    if (me == 2) CHECK(all[3] == Floats{6, 9, 12});
    CHECK(all[4] == Floats{1, 2, 3, 4});
    Floats expected;
    for (size_t r = 0; r < 3; ++r)
      expected.insert(expected.end(), r + me, static_cast<float>(10 * r + me));
    CHECK(all[5] == expected);
  }
}

TEST_CASE("the host does not wait for the GPU, and the GPU waits for the caller's stream") {
  const auto results = on_device_ranks(2, [](DeviceRank& here) {
    UserStream user(here.device());
    std::promise<void> gate;
    Floats data(8, -1);
    user.run([&, open = gate.get_future().share()] {
      open.wait();
      std::fill(data.begin(), data.end(), 1.0f + static_cast<float>(here.rank()));
    });
    auto [status, order] = here.run(allreduce(data, ReduceOp::kSum), {user.mark()});
    must(status);
    const bool early = must(order.done->query());
    must(order.done->make_wait(user.handle()));
    float seen = 0;
    user.run([&] { seen = data[7]; });  // as a framework's next kernel
    gate.set_value();
    must(user.mark()->wait());
    return std::pair(early, seen);
  });
  for (const auto& [early, seen] : results) {
    CHECK_FALSE(early);
    CHECK(seen == 3.0f);
  }
}

TEST_CASE(
    "calls of several tasks reach NCCL in the order of their start, however they are advanced") {
  const auto results = on_device_ranks(2, [](DeviceRank& here) {
    Floats a = ramp(here.rank(), 100);
    Floats b = ramp(here.rank(), 200);
    nccl::StreamOrder first{here.rank(), {}, nullptr};
    nccl::StreamOrder second{here.rank(), {}, nullptr};
    const CollectivePtr one = allreduce(a, ReduceOp::kSum)(here.communicator);
    const CollectivePtr two = allreduce(b, ReduceOp::kSum)(here.communicator);
    one->start({nullptr, &first});
    two->start({nullptr, &second});
    if (here.rank() == 0) two->advance();
    must(finish(here.world, here.communicator, *one));
    must(finish(here.world, here.communicator, *two));
    must(second.done->wait());
    return std::pair(a, b);
  });
  for (const auto& [a, b] : results) {
    CHECK(a[3] == 7);
    CHECK(b[3] == 7);
  }
}

TEST_CASE(
    "what NCCL cannot do is refused alike where one rank has no kernels, and the next call works") {
  const auto no_kernels = [](Rank rank, nccl::Machine::Options* options) {
    if (rank == 1) options->kernels = "none";
  };
  const auto run = [](DeviceRank& here) {
    Floats data = ramp(here.rank(), 4);
    const auto part = [&] { return std::vector<Part>{{bytes(data), bytes(data), 4}}; };
    std::vector<std::string> texts;
    texts.push_back(here.run([&](auto& c) {
                          return testing::allreduce(c, part(), DType::kInt16, ReduceOp::kSum, {});
                        })
                        .first.message());
    texts.push_back(
        here.run([&](auto& c) {
              const auto scaling = must(plan_scaling(DType::kInt32, ReduceOp::kAverage, 1, 1, 2));
              return testing::allreduce(c, part(), DType::kInt32, ReduceOp::kAverage, scaling);
            })
            .first.message());
    here.finish(allreduce(data, ReduceOp::kSum));
    texts.push_back(std::to_string(data[0]));
    return texts;
  };
  for (const auto& texts : on_device_ranks(2, run, no_kernels)) {
    CHECK_THAT(texts[0], Contains("NCCL has no int16"));
    CHECK_THAT(texts[1], Contains("average and scales of int32 are not available on GPUs"));
    CHECK(texts[2] == "1.000000");
  }
}

TEST_CASE("a scale that an old NCCL lacks is refused alike, plain sums and averages are not") {
  const auto results = on_device_ranks(
      2,
      [](DeviceRank& here) {
        Floats data = ramp(here.rank(), 4);
        const std::string text = here.outcome(allreduce(data, ReduceOp::kSum, 0.5)).message();
        here.finish(allreduce(data, ReduceOp::kAverage));
        return std::pair(text, data[3]);
      },
      [](Rank, nccl::Machine::Options* options) { options->library = built::kStubNcclOld; });
  for (const auto& [text, value] : results) {
    CHECK_THAT(text, Contains("cannot scale; install a newer one"));
    CHECK(value == 3.5f);
  }
}

TEST_CASE("two ranks on one GPU are refused on both with rank, host and UUID, or allowed") {
  const Variable same("FAKE_CUDA_ONE_UUID", "1");
  const bool allowed = GENERATE(false, true);
  const auto results = on_device_ranks(
      2,
      [](DeviceRank& here) {
        Floats data = ramp(here.rank(), 4);
        const Status first = here.outcome(allreduce(data, ReduceOp::kSum));
        const Status second = here.outcome(allreduce(data, ReduceOp::kSum));
        return std::pair(first, second);
      },
      [&](Rank, nccl::Machine::Options* options) { options->ranks_per_gpu = allowed ? 2 : 1; });
  for (const auto& [first, second] : results) {
    CHECK(first.ok() == allowed);
    CHECK(first.message() == results[0].first.message());
    CHECK(second.message() == first.message());
    if (!allowed)
      CHECK_THAT(first.message(), Contains("GPU-00000000-0000-0000-0000-000000000000  (shared)"));
  }
}

TEST_CASE("a rank without NCCL is named on all ranks, nobody waits for it") {
  const auto results = on_device_ranks(
      3,
      [](DeviceRank& here) {
        Floats data = ramp(here.rank(), 4);
        return here.outcome(allreduce(data, ReduceOp::kSum));
      },
      [](Rank rank, nccl::Machine::Options* options) {
        if (rank == 1) options->library = "/nowhere/libnccl.so.2";
      });
  for (const Status& status : results) {
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK_THAT(status.message(), Contains("GPU tensors cannot be used on:\n  rank 1") &&
                                     Contains("/nowhere/libnccl.so.2"));
  }
}

TEST_CASE("an error of a call is NCCL's own text with the rank") {
  const Variable fault("STUB_NCCL_FAULT", "ncclAllReduce:0:1:error");
  const auto results = on_device_ranks(1, [](DeviceRank& here) {
    Floats data(4, 1);
    return here.outcome(allreduce(data, ReduceOp::kSum));
  });
  CHECK_THAT(results[0].message(),
             Contains("rank 0") && Contains("ncclAllReduce: unhandled system error: stub: injected "
                                            "error of ncclAllReduce"));
}

// Waits for the watcher; the device's work itself never ends.
Status wait_for_failure(DeviceRank& here) {
  const auto patience = std::chrono::steady_clock::now() + kGenerous;
  while (here.communicator.health().ok() && std::chrono::steady_clock::now() < patience)
    std::this_thread::yield();
  return here.communicator.health();
}

TEST_CASE(
    "an error that comes after the call is seen by the watcher, and abort ends the GPU's work") {
  const Variable fault("STUB_NCCL_FAULT", "ncclAllReduce:0:2:async");
  const auto results = on_device_ranks(1, [](DeviceRank& here) {
    Floats data(4, 1);
    here.finish(allreduce(data, ReduceOp::kSum));
    // The watcher may be faster than the call.
    const Status status = here.run(allreduce(data, ReduceOp::kSum)).first;
    const Status seen = status.ok() ? wait_for_failure(here) : status;
    here.communicator.abandon();  // else its stream would not end
    return seen;
  });
  CHECK_THAT(results[0].message(),
             Contains("rank 0") && Contains("a collective on the GPU: remote process exited"));
}

TEST_CASE("a collective whose peer does not come is ended by abort") {
  const Variable fault("STUB_NCCL_FAULT", "ncclAllReduce:1:1:hang");
  std::latch given(2);
  on_device_ranks(2, [&](DeviceRank& here) {
    Floats data(4, 1);
    auto [status, order] = here.run(allreduce(data, ReduceOp::kSum));
    given.arrive_and_wait();
    must(status);
    here.communicator.abandon();
    must(order.done->wait());
    return 0;
  });
}

TEST_CASE("NCCL's start is waited for in bounds, and its errors are told") {
  const std::string how = GENERATE("hang", "async", "error");
  const Variable fault("STUB_NCCL_FAULT", "ncclCommInitRankConfig:1:1:" + how);
  const auto results = on_device_ranks(
      2,
      [](DeviceRank& here) {
        Floats data(4, 1);
        return here.outcome(allreduce(data, ReduceOp::kSum));
      },
      [](Rank, nccl::Machine::Options* options) {
        options->patience = std::chrono::milliseconds(50);
      });
  CHECK_THAT(results[0].message(), Contains("rank 0") && Contains("RUEDA_START_TIMEOUT"));
  CHECK_THAT(results[1].message(), Contains("rank 1"));
  if (how == "error")
    CHECK_THAT(results[1].message(), Contains("injected error of ncclCommInitRankConfig"));
  if (how == "async")
    CHECK_THAT(results[1].message(), Contains("NCCL's start: remote process exited"));
}

TEST_CASE("an abort that does not return is left behind after two seconds") {
  const auto open =
      reinterpret_cast<int64_t (*)()>(dlsym(dlopen(built::kStubNccl, RTLD_NOW), "stub_nccl_open"));
  const int64_t before = open();
  const Variable fault("STUB_NCCL_FAULT", "ncclCommAbort:0:1:hang");
  const auto began = std::chrono::steady_clock::now();
  on_device_ranks(1, [](DeviceRank& here) {
    Floats data(4, 1);
    here.finish(allreduce(data, ReduceOp::kSum));
    here.communicator.abandon();
    return 0;
  });
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::seconds(2));
  // The stub's comes back in the end; tests that count communicators shall not see it go.
  while (open() > before && std::chrono::steady_clock::now() - began < kGenerous)
    std::this_thread::yield();
  CHECK(open() <= before);
}

TEST_CASE("a rank keeps to one GPU") {
  const auto results = on_device_ranks(1, [](DeviceRank& here) {
    Floats data(4, 1);
    here.finish(allreduce(data, ReduceOp::kSum));
    nccl::StreamOrder order{3, {}, nullptr};
    const CollectivePtr late = allreduce(data, ReduceOp::kSum)(here.communicator);
    return drive(here.world, here.communicator, *late, {nullptr, &order});
  });
  CHECK_THAT(results[0].message(), Contains("used GPU 0 before, and a tensor on GPU 3 now"));
}

}  // namespace
}  // namespace rueda::testing

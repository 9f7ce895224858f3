// How ordered groups with GPU tensors end: closed, aborted, by a member that leaves, by NCCL.
#include <catch2/catch.hpp>

#include <chrono>
#include <thread>

#include "tests/cuda/gpu_world.h"
#include "tests/runtime/group_calls.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

using Catch::Contains;
using K = CollectiveKind;

int64_t number_of(const char* library, const char* name) {
  return reinterpret_cast<int64_t (*)()>(dlsym(dlopen(library, RTLD_NOW), name))();
}

Operation sum_in(uint32_t group, Rank rank, Floats* data) {
  return on_gpu(call_of(group, K::kAllreduce, *data, data), rank);
}

}  // namespace

TEST_CASE("an abort ends calls of GPU tensors on all members, and what waits on a GPU",
          "[group_gpu]") {
  std::vector<Floats> data(3, Floats(50, 1));  // the GPUs may use them until the abort
  Floats more(50, 1);
  const Variable hang("STUB_NCCL_FAULT", "ncclAllReduce:0:2:hang");
  GpuWorld gpus(3);
  const Ranks list = {1, 2, 0};
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("aborted", list));
    const uint32_t other = must(r.open_group("other", list));
    Floats& mine = data[static_cast<size_t>(rank)];
    must(finish(start(r, sum_in(group, rank, &mine))));
    // Given to all GPUs, and none will ever do it.
    const RequestPtr stuck = start(r, sum_in(group, rank, &mine));
    must(end_of(stuck));
    if (must(stuck->device_end()->query())) return "it has not hung";
    RequestPtr pending;
    if (rank == 0) pending = start(r, sum_in(group, rank, &more));
    std::string trouble = trouble_with_group(r, other, list);
    if (!trouble.empty()) return trouble;
    if (rank == 1) must(r.abort_group(group, "enough"));
    if (pending != nullptr && end_of(pending).code() != Code::kCancelled) return "pending";
    const Status status = end_of(start(r, sum_in(group, rank, &more)));
    if (status.code() != Code::kCancelled) return "code: " + status.to_string();
    must(stuck->device_end()->wait());  // the GPU is free
    must(r.close_group(group));
    Floats last(50, 1);
    must(finish(start(r, sum_in(other, rank, &last))));
    if (last != Floats(50, 3)) return "wrong sum in another group";
    return status.message();
  });
  for (const std::string& text : texts) {
    INFO(text);
    CHECK(has(text, "rank 1 "));
    CHECK(has(text, "has ended the group: enough"));
  }
}

TEST_CASE("a closed group keeps NCCL until all members' GPUs are done, and nothing afterwards",
          "[group_gpu]") {
  const int64_t torn = number_of(built::kStubNccl, "stub_nccl_torn");
  GpuWorld gpus(3);
  const Ranks list = {2, 0, 1};
  std::vector<Floats> data(3);
  const auto round = [&](Rank rank, Runtime& r) {
    const uint32_t group = must(r.open_group("closed", list));
    Floats& mine = data[static_cast<size_t>(rank)];
    mine.assign(100, 1);
    UserStream user(must(r.machine().device(rank)));
    std::promise<void> gate;
    if (rank == 1) user.run([open = gate.get_future().share()] { open.wait(); });
    auto op = sum_in(group, rank, &mine);
    op.stream = user.handle();
    const RequestPtr work = start(r, op);
    auto message = sum_in(group, rank, &mine);  // to the next, when the sum is there
    message.kind = rank == 2 ? K::kRecv : K::kSend;
    message.peer = rank == 2 ? 0 : 2;
    Floats inbox(100, -1);
    if (rank == 2) message.output = reinterpret_cast<std::byte*>(inbox.data());
    RequestPtr moved;
    must(end_of(work));
    must(work->device_end()->make_wait(user.handle()));
    message.stream = user.handle();
    if (rank != 1) moved = start(r, message);
    must(r.close_group(group));
    gate.set_value();
    must(finish(work));
    if (moved) must(finish(moved));
    return mine == Floats(100, 3) && (rank != 2 || inbox == Floats(100, 3));
  };
  const int64_t open = number_of(built::kStubNccl, "stub_nccl_open");
  for (int i = 0; i < 4; ++i) {
    for (const bool right : gpus.world.run(round)) CHECK(right);
  }
  // A member lets go of NCCL when it has heard of all others' ends.
  const auto patience = std::chrono::steady_clock::now() + kGenerous;
  while (number_of(built::kStubNccl, "stub_nccl_open") > open &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::yield();
  }
  CHECK(number_of(built::kStubNccl, "stub_nccl_open") == open);
  CHECK(number_of(built::kStubNccl, "stub_nccl_torn") == torn);
}

TEST_CASE("a member that leaves the job is named by what needs its GPU", "[group_gpu]") {
  Floats left[2] = {Floats(3, 1), Floats(3, 1)};
  GpuWorld gpus(3);
  const Ranks list = {0, 2, 1};
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("left", list));
    Floats data(30, 1);
    must(finish(start(r, sum_in(group, rank, &data))));
    if (rank == 2) {
      r.shutdown();
      return "";
    }
    const Status status = end_of(start(r, sum_in(group, rank, &left[rank])));
    r.shutdown();  // rank 2 waits for that, in bounds
    return status.to_string();
  });
  for (const Rank rank : {0, 1}) {
    INFO(texts[static_cast<size_t>(rank)]);
    CHECK(has(texts[static_cast<size_t>(rank)], "cancelled"));
    CHECK(has(texts[static_cast<size_t>(rank)], "in group 'left'"));
  }
}

TEST_CASE("an error of a group's work on a GPU ends the job with NCCL's text", "[group_gpu]") {
  const Variable fault("STUB_NCCL_FAULT", "ncclAllReduce:1:2:async");
  Floats data[2] = {Floats(4, 1), Floats(4, 1)};  // the GPU may use it until NCCL's work is aborted
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) {
    const uint32_t group = must(r.open_group("broken", {1, 0}));
    must(finish(start(r, sum_in(group, rank, &data[rank]))));
    // The second is given to the GPU; sooner or later a call fails.
    for (;;) {
      auto works = r.start({sum_in(group, rank, &data[rank])}, false);
      const Status status = works.ok() ? end_of(works->front()) : works.status();
      if (!status.ok()) return status.message();
    }
  });
  for (const std::string& text : texts) CHECK_THAT(text, Contains("remote process exited"));
}

TEST_CASE("members whose GPUs do not fit hear it alike, and the group goes on with CPU tensors",
          "[group_gpu]") {
  const Variable one("FAKE_CUDA_ONE_UUID", "1");
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("shared", {1, 0}));
    Floats data(4, 1);
    const Status first = end_of(start(r, sum_in(group, rank, &data)));
    const Status second = end_of(start(r, sum_in(group, rank, &data)));
    if (first.message() != second.message() || data != Floats(4, 1)) return "not alike";
    const std::string trouble = trouble_with_group(r, group, {1, 0});
    return trouble.empty() ? first.message() : trouble;
  });
  for (const std::string& text : texts)
    CHECK_THAT(text, Contains("in group 'shared'") && Contains("several ranks use the same GPU"));
}

TEST_CASE("a call of a group is refused in a CUDA graph, and does not count", "[group_gpu]") {
  using Begin = int (*)(cuda::StreamHandle, int);
  using End = int (*)(cuda::StreamHandle, struct CUgraph_st**);
  const auto begin =
      reinterpret_cast<Begin>(dlsym(dlopen(built::kFakeCuda, RTLD_NOW), "cuStreamBeginCapture_v2"));
  const auto end =
      reinterpret_cast<End>(dlsym(dlopen(built::kFakeCuda, RTLD_NOW), "cuStreamEndCapture"));
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("captured", {0, 1}));
    std::string said = "is being captured";
    if (rank == 0) {
      UserStream user(must(r.machine().device(rank)));
      Floats data(4, 1);
      auto op = sum_in(group, rank, &data);
      op.stream = user.handle();
      struct CUgraph_st* graph = nullptr;
      if (begin(user.handle(), 0) != 0) return "no capture";
      said = end_of(start(r, op)).message();
      end(user.handle(), &graph);
      if (graph != nullptr) {
        const auto destroy = reinterpret_cast<int (*)(struct CUgraph_st*)>(
            dlsym(dlopen(built::kFakeCuda, RTLD_NOW), "cuGraphDestroy"));
        destroy(graph);
      }
    }
    const std::string trouble = trouble_with_group(r, group, {0, 1});
    return trouble.empty() ? said : trouble;
  });
  for (const std::string& text : texts) CHECK_THAT(text, Contains("is being captured"));
}

}  // namespace rueda::testing

// GPU tensors in ordered groups, without a GPU: every kind, what members disagree about, messages,
// ends.
#include <catch2/catch.hpp>

#include "tests/cuda/gpu_world.h"
#include "tests/runtime/group_kinds.h"

namespace rueda::testing {
namespace {

using Catch::Contains;
using K = CollectiveKind;

// A call with tensors on this rank's GPU, until that has done it.
RequestPtr call_on_gpu(Runtime& runtime, Operation op) {
  const Rank rank = runtime.membership().rank;
  const bool on_device = has_tensor(op.kind);
  RequestPtr request = start(runtime, on_gpu(std::move(op), rank));
  must(finish(request));
  if (on_device && request->device_end() == nullptr) throw Failure("it has run on the host");
  return request;
}

Operation message(uint32_t group, K kind, Rank me, Rank peer, uint32_t tag, Floats* data) {
  auto op = on_gpu(call_of(group, kind, *data, data), me);
  op.peer = peer;
  op.tag = tag;
  return op;
}

}  // namespace

TEST_CASE("every kind is right on GPUs in groups of every size and order", "[group_gpu]") {
  const std::vector<Ranks> lists = {{3, 0, 2, 1}, {2, 0}, {1, 3, 0}, {2}};
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    GpuWorld gpus(4, kind);
    const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
      for (const Ranks& list : lists) {
        if (!contains(list, rank)) continue;
        const uint32_t group = must(r.open_group("all kinds", list));
        std::string trouble = trouble_of<float>(r, group, list, DType::kFloat32, 50, call_on_gpu);
        if (trouble.empty())
          trouble = trouble_of<int32_t>(r, group, list, DType::kInt32, 9000, call_on_gpu);
        if (trouble.empty())
          trouble = trouble_of<double>(r, group, list, DType::kFloat64, 1, call_on_gpu);
        if (trouble.empty())
          trouble = trouble_of<uint8_t>(r, group, list, DType::kUInt8, 50, call_on_gpu);
        if (trouble.empty()) trouble = trouble_with_roots(r, group, list, call_on_gpu);
        if (!trouble.empty()) return "group of " + std::to_string(list.size()) + ": " + trouble;
        must(r.close_group(group));
      }
      return trouble_with_sum(r, "after");
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("every reduction that NCCL has, with scales, in every kind that reduces", "[group_gpu]") {
  GpuWorld gpus(3);
  const Ranks list = {2, 0, 1};
  const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("reductions", list));
    const std::pair<ReduceOp, float> ops[] = {{ReduceOp::kSum, 12},
                                              {ReduceOp::kAverage, 4},
                                              {ReduceOp::kMin, 2},
                                              {ReduceOp::kMax, 6},
                                              {ReduceOp::kProduct, 48}};
    for (const auto& [op, expected] : ops) {
      for (const K kind : {K::kAllreduce, K::kReduce, K::kReducescatter}) {
        const Floats in(6, static_cast<float>(2 * (rank + 1)));
        const bool shares = kind == K::kReducescatter;
        Floats out(shares ? 2 : 6, -1);
        auto reduced = call_of(group, kind, in, &out);
        reduced.reduce_op = op;
        reduced.root = 1;
        call_on_gpu(r, reduced);
        const bool wanted = kind != K::kReduce || rank == 1;
        if (out != Floats(out.size(), wanted ? expected : -1))
          return std::string(name_of(kind)) + " " + name_of(op);
      }
    }
    const Floats in(6, 1);
    Floats out(6);
    auto scaled = call_of(group, K::kReduce, in, &out);
    scaled.prescale = 2;
    scaled.postscale = 0.25;
    scaled.root = 2;
    call_on_gpu(r, scaled);
    if (rank == 2 && out != Floats(6, 1.5f)) return "scales";
    // What NCCL has not, of any kind.
    const std::vector<int32_t> bits(6, 7 << rank);
    for (const K kind : {K::kAllreduce, K::kReduce, K::kReducescatter}) {
      const bool shares = kind == K::kReducescatter;
      std::vector<int32_t> common(shares ? 2 : 6, -1);
      auto bitwise = typed(group, kind, DType::kInt32, {6}, bits, &common);
      bitwise.reduce_op = ReduceOp::kBitwiseAnd;
      bitwise.root = 1;
      call_on_gpu(r, bitwise);
      const bool wanted = kind != K::kReduce || rank == 1;
      if (common != std::vector<int32_t>(common.size(), wanted ? 4 : -1))
        return std::string("bitwise and in ") + name_of(kind);
    }
    return trouble_with_group(r, group, list);
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("the tensors of one call on GPUs, and persistent requests of them", "[group_gpu]") {
  GpuWorld gpus(3);
  const Ranks list = {1, 2, 0};
  const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("again", list));
    for (const K kind : {K::kAllreduce, K::kBroadcast, K::kReducescatter, K::kReduce}) {
      for (int round = 0; round < 3; ++round) {
        std::vector<Floats> in, out;
        std::vector<Operation> ops;
        for (size_t i = 0; i < 5; ++i) {
          in.emplace_back(3 * (i + 1), static_cast<float>(rank + 1) + static_cast<float>(i));
          out.emplace_back(kind == K::kReducescatter ? i + 1 : 3 * (i + 1), -1.0f);
        }
        for (size_t i = 0; i < 5; ++i) {
          ops.push_back(on_gpu(call_of(group, kind, in[i], &out[i]), rank));
          ops.back().root = 2;
        }
        const auto requests = must(r.start(ops, true));
        for (const RequestPtr& request : requests) must(finish(request));
        for (size_t i = 0; i < 5; ++i) {
          const float sum = 6 + 3 * static_cast<float>(i);
          const float expected = kind == K::kBroadcast             ? 3 + static_cast<float>(i)
                                 : kind == K::kReduce && rank != 2 ? -1
                                                                   : sum;
          if (out[i] != Floats(out[i].size(), expected)) return name_of(kind);
        }
      }
    }
    Floats host(3), device(3);
    std::vector<Operation> mixed = {call_of(group, K::kAllreduce, host, &host),
                                    on_gpu(call_of(group, K::kAllreduce, device, &device), rank)};
    const auto refused = r.start(mixed, true);
    if (refused.ok() || !has(refused.status().message(), "all be on the host, or all on the GPU"))
      return "mixed on one rank";
    // With each start in its place among the others, in memory of its own too.
    const auto persistent = [&](K kind, int64_t count) {
      return make(r, on_gpu(in_group(group, shape_of(kind, "", DType::kFloat32, count)), rank));
    };
    const RequestPtr a = persistent(K::kAllreduce, 10);
    const RequestPtr b = persistent(K::kReducescatter, 9);
    // A stream of another GPU is refused, and it can be started again.
    UserStream wrong(must(r.machine().device((rank + 1) % 3)));
    Floats unused(10, 1);
    if (a->start(in_of(unused), out_of(&unused), wrong.handle()).ok()) return "a wrong stream";
    for (int round = 0; round < 20; ++round) {
      Floats x(10, static_cast<float>(rank + round)), z(9, 1);
      must(b->start(in_of(z), nullptr));
      must(a->run(in_of(x), out_of(&x)));
      must(finish(b));
      if (x != Floats(10, 3 + 3 * static_cast<float>(round)) || result_of(b) != Floats(3, 3))
        return "round " + std::to_string(round);
    }
    return trouble_with_group(r, group, list);
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("a call ends when the GPU has it, and its stream comes before", "[group_gpu]") {
  GpuWorld gpus(2);
  const auto results = gpus.world.run([](Rank rank, Runtime& r) {
    const uint32_t group = must(r.open_group("streams", {1, 0}));
    Floats data(64, -1);
    const auto op = on_gpu(call_of(group, K::kAllreduce, data, &data), rank);
    return stand_in_stream(r, op, &data, 1.0f + static_cast<float>(rank));
  });
  for (const Stood& stood : results) {
    CHECK_FALSE(stood.was_early);
    CHECK(stood.seen == 3.0f);
  }
}

TEST_CASE("calls of GPU and CPU tensors of two groups, many at once", "[group_gpu]") {
  GpuWorld gpus(3);
  const Ranks list = {2, 1, 0};
  const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    const uint32_t groups[] = {must(r.open_group("one", list)), must(r.open_group("two", list))};
    constexpr size_t kCalls = 60;
    std::vector<Floats> data;
    std::vector<RequestPtr> requests;
    data.reserve(kCalls);
    for (size_t i = 0; i < kCalls; ++i) {
      data.emplace_back(1 + 70 * (i % 9), static_cast<float>(rank + 1) + float(i));
      auto op = call_of(groups[i % 2], K::kAllreduce, data[i], &data[i]);
      requests.push_back(start(r, i % 3 == 0 ? op : on_gpu(op, rank)));
    }
    for (size_t i = 0; i < kCalls; ++i) {
      must(finish(requests[i]));
      if (data[i] != Floats(data[i].size(), 6 + 3 * static_cast<float>(i)))
        return "call " + std::to_string(i);
    }
    for (const uint32_t group : groups) must(r.close_group(group));
    return "";
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("members that differ all hear of it before a GPU is given anything", "[group_gpu]") {
  GpuWorld gpus(3);
  const Ranks list = {1, 0, 2};
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) {
    const uint32_t group = must(r.open_group("differ", list));
    std::vector<std::string> said;
    Floats data(6, static_cast<float>(rank));
    const Floats before = data;
    const auto refused = [&](Operation op) {
      const Status status = end_of(start(r, std::move(op)));
      if (status.code() != Code::kFailedPrecondition) throw Failure(status.to_string());
      said.push_back(status.message());
    };
    const auto sum = call_of(group, K::kAllreduce, data, &data);
    refused(rank == 0 ? sum : on_gpu(sum, rank));
    auto shorter = on_gpu(sum, rank);
    if (rank == 2) shorter.shape = {5};
    refused(shorter);
    auto other = on_gpu(sum, rank);
    if (rank == 1) other.kind = K::kBroadcast;
    refused(other);
    if (data != before) said.emplace_back("touched");
    must(finish(start(r, on_gpu(sum, rank))));
    if (data != Floats(6, 3)) said.emplace_back("wrong sum");
    return said;
  });
  for (const auto& said : texts) {
    REQUIRE(said.size() == 3);
    CHECK_THAT(said[0], Contains("Mismatched CPU/GPU device selection") &&
                            Contains("rank 0 sent a CPU tensor") && Contains("sent a GPU tensor"));
    CHECK_THAT(said[1], Contains("rank 2 sent") && Contains("[5]") && Contains("[6]"));
    CHECK_THAT(said[2], Contains("Mismatched operations") && Contains("broadcast"));
  }
}

TEST_CASE("messages of GPU tensors meet by group, peer and tag", "[group_gpu]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    GpuWorld gpus(3, kind);
    const Ranks list = {2, 0, 1};
    const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
      const uint32_t one = must(r.open_group("one", list));
      const uint32_t two = must(r.open_group("two", list));
      for (const size_t n : {size_t{0}, size_t{3}, size_t{50000}}) {
        std::vector<Floats> out, in;
        std::vector<RequestPtr> requests;
        out.reserve(40);
        in.reserve(40);
        // To everybody, itself too, of two groups and two tags, received in another order.
        for (const uint32_t group : {one, two}) {
          for (Rank peer = 0; peer < 3; ++peer) {
            for (const uint32_t tag : {4u, 5u}) {
              out.emplace_back(
                  n, static_cast<float>(100 * rank + 10 * int(tag)) + float(group == two));
              requests.push_back(start(r, message(group, K::kSend, rank, peer, tag, &out.back())));
            }
          }
        }
        for (const uint32_t group : {two, one}) {
          for (const uint32_t tag : {5u, 4u}) {
            for (Rank peer = 0; peer < 3; ++peer) {
              in.emplace_back(n, -1.0f);
              requests.push_back(start(r, message(group, K::kRecv, rank, peer, tag, &in.back())));
            }
          }
        }
        for (const RequestPtr& request : requests) must(finish(request));
        size_t at = 0;
        for (const bool second : {true, false}) {
          for (const int tag : {5, 4}) {
            for (Rank peer = 0; peer < 3; ++peer) {
              if (in[at++] != Floats(n, static_cast<float>(100 * peer + 10 * tag) + float(second)))
                return "message " + std::to_string(at - 1);
            }
          }
        }
        // A call between a send and its receive does not stand in its way.
        Floats give(n, 1), take(n, -1), sum(10, 1);
        std::vector<RequestPtr> crossed;
        if (rank == 0) crossed.push_back(start(r, message(one, K::kSend, 0, 1, 9, &give)));
        crossed.push_back(start(r, on_gpu(call_of(one, K::kAllreduce, sum, &sum), rank)));
        if (rank == 1) crossed.push_back(start(r, message(one, K::kRecv, 1, 0, 9, &take)));
        for (const RequestPtr& request : crossed) must(finish(request));
        if (sum != Floats(10, 3) || (rank == 1 && take != give)) return "crossed";
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("GPU tensors from whoever sends them", "[group_gpu]") {
  constexpr int kEach = 4;
  GpuWorld gpus(3);
  const Ranks list = {2, 0, 1};
  const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    const uint32_t group = must(r.open_group("any", list));
    std::vector<Floats> out;
    for (int i = 0; i < kEach; ++i) out.emplace_back(8, static_cast<float>(100 * rank + i));
    std::vector<RequestPtr> sends;
    for (Floats& data : out) {
      for (Rank to = 0; to < 3; ++to)
        sends.push_back(start(r, message(group, K::kSend, rank, to, 9, &data)));
    }
    std::vector<int> seen(3);
    for (int i = 0; i < 3 * kEach; ++i) {
      Floats in(8, -1);
      const RequestPtr request =
          start(r, message(group, K::kRecv, rank, engine::GroupMessages::kAnybody, 9, &in));
      must(finish(request));
      const auto from = static_cast<Rank>(request->result());
      if (in != Floats(8, static_cast<float>(100 * from + seen[static_cast<size_t>(from)]++)))
        return "out of order";
    }
    for (const RequestPtr& request : sends) must(finish(request));
    return "";
  });
  for (const auto& error : errors) CHECK(error == "");
}

TEST_CASE("a send and a receive that differ are errors on both, and later ones go on",
          "[group_gpu]") {
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) {
    const uint32_t group = must(r.open_group("differ", {1, 0}));
    const K kind = rank == 0 ? K::kSend : K::kRecv;
    std::vector<std::string> said;
    const auto refused = [&](const Operation& op) {
      const Status status = end_of(start(r, op));
      if (status.code() != Code::kFailedPrecondition) throw Failure(status.to_string());
      said.push_back(status.message());
    };
    Floats data(rank == 0 ? 3 : 4, static_cast<float>(rank));
    refused(message(group, kind, rank, 1 - rank, 5, &data));
    // On a GPU here, on the host there.
    data.resize(4);
    auto mixed = message(group, kind, rank, 1 - rank, 5, &data);
    if (rank == 1) mixed.device = -1;
    refused(mixed);
    must(finish(start(r, message(group, kind, rank, 1 - rank, 5, &data))));
    if (data.front() != 0) said.emplace_back("wrong message");
    return said;
  });
  for (const auto& said : texts) {
    REQUIRE(said.size() == 2);
    CHECK_THAT(said[0], Contains("rank 0 sends 12 bytes on a GPU, rank 1 expects 16"));
    CHECK_THAT(said[1], Contains("a GPU tensor (type") && Contains("16 bytes (type"));
  }
}

}  // namespace rueda::testing

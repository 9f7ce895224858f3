// Sends and receives of GPU tensors outside of groups, without a GPU: what meets what, the order of
// streams, what two ranks disagree about, ends.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/cuda/gpu_world.h"
#include "tests/runtime/group_calls.h"

namespace rueda::testing {
namespace {

using Catch::Contains;
using K = CollectiveKind;
using Clock = std::chrono::steady_clock;

Operation message(K kind, Rank me, Rank peer, uint32_t tag, Floats* data) {
  auto op = on_gpu(operation(kind, "", *data, data), me);
  op.peer = peer;
  op.tag = tag;
  return op;
}

}  // namespace

TEST_CASE("sends and receives of GPU tensors meet by peer, tag and space, in order",
          "[messages_gpu]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    GpuWorld gpus(3, kind);
    const auto errors = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
      for (const size_t n : {size_t{0}, size_t{3}, size_t{50000}}) {
        std::vector<Floats> out, in;
        std::vector<RequestPtr> requests;
        out.reserve(40);
        in.reserve(40);
        // To everybody, itself too, twice in each of two tags and spaces, received in another
        // order.
        for (Rank peer = 0; peer < 3; ++peer) {
          for (const uint32_t tag : {4u, 5u}) {
            for (const uint32_t space : {0u, 7u}) {
              for (int nth = 0; nth < 2; ++nth) {
                out.emplace_back(n, static_cast<float>(100 * rank + 10 * int(tag) + nth) +
                                        (space == 0 ? 0.0f : 0.5f));
                auto op = message(K::kSend, rank, peer, tag, &out.back());
                op.tag_space = space;
                requests.push_back(start(r, op));
              }
            }
          }
        }
        std::vector<float> expected;
        for (const uint32_t space : {7u, 0u}) {
          for (const uint32_t tag : {5u, 4u}) {
            for (Rank peer = 2; peer >= 0; --peer) {
              for (int nth = 0; nth < 2; ++nth) {
                in.emplace_back(n, -1.0f);
                expected.push_back(static_cast<float>(100 * peer + 10 * int(tag) + nth) +
                                   (space == 0 ? 0.0f : 0.5f));
                auto op = message(K::kRecv, rank, peer, tag, &in.back());
                op.tag_space = space;
                requests.push_back(start(r, op));
              }
            }
          }
        }
        for (const RequestPtr& request : requests) {
          must(finish(request));
          if (request->device_end() == nullptr) return "it has run on the host";
        }
        for (size_t i = 0; i < in.size(); ++i)
          if (in[i] != Floats(n, expected[i])) return "message " + std::to_string(i);
        // Those of the host have tags of their own, and a collective does not stand in the way.
        Floats give(n, 1), take(n, -1), sum(10, 1);
        std::vector<RequestPtr> crossed;
        if (rank == 0) crossed.push_back(start(r, message(K::kSend, 0, 1, 9, &give)));
        crossed.push_back(start(r, on_gpu(sum_of("between", &sum), rank)));
        if (rank == 1) crossed.push_back(start(r, message(K::kRecv, 1, 0, 9, &take)));
        for (const RequestPtr& request : crossed) must(finish(request));
        if (sum != Floats(10, 3) || (rank == 1 && take != give)) return "crossed";
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a message is sent when its stream has come to it, and its receiver's stream waits",
          "[messages_gpu]") {
  GpuWorld gpus(2);
  const auto results = gpus.world.run([](Rank rank, Runtime& r) {
    Floats data(64, -1);
    const auto op = message(rank == 0 ? K::kSend : K::kRecv, rank, 1 - rank, 1, &data);
    const auto filled = rank == 0 ? std::optional(5.0f) : std::nullopt;
    return stand_in_stream(r, op, &data, filled, [&] {
      // Both have ended on the host before rank 0's stream goes on.
      Floats none(1);
      must(finish(start(r, sum_of("both are here", &none))));
    });
  });
  for (const Stood& stood : results) {
    CHECK_FALSE(stood.was_early);
    CHECK(stood.seen == 5.0f);
  }
}

TEST_CASE("a send and a receive of GPU tensors that differ are errors on both", "[messages_gpu]") {
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) {
    const K kind = rank == 0 ? K::kSend : K::kRecv;
    std::vector<std::string> said;
    const auto refused = [&](const Operation& op) {
      const Status status = end_of(start(r, op));
      if (status.code() != Code::kFailedPrecondition) throw Failure(status.to_string());
      said.push_back(status.message());
    };
    Floats data(rank == 0 ? 3 : 4, static_cast<float>(rank));
    refused(message(kind, rank, 1 - rank, 5, &data));
    data.resize(4);
    auto mixed = message(kind, rank, 1 - rank, 5, &data);
    if (rank == 1) mixed.device = -1;
    refused(mixed);
    auto typed = message(kind, rank, 1 - rank, 5, &data);
    if (rank == 1) typed.dtype = DType::kInt32;
    refused(typed);
    must(finish(start(r, message(kind, rank, 1 - rank, 5, &data))));
    if (data.front() != 0) said.emplace_back("wrong message");
    return said;
  });
  for (const auto& said : texts) {
    REQUIRE(said.size() == 3);
    CHECK_THAT(said[0], Contains("rank 0 sends 12 bytes on a GPU, rank 1 expects 16"));
    CHECK_THAT(said[1], Contains("a GPU tensor (type") && Contains("16 bytes (type"));
    CHECK_THAT(said[2], Contains("a GPU tensor (type"));
  }
}

TEST_CASE("messages that nobody meets end when the other rank leaves, those that have met go on",
          "[messages_gpu]") {
  for (const Rank leaver : {0, 1}) {
    Floats data[2] = {Floats(50000, 1), Floats(50000, 2)};
    Floats inbox(50000, -1);
    GpuWorld gpus(2);
    const auto texts = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
      if (rank == leaver) {
        const RequestPtr sent = start(r, message(K::kSend, rank, 1 - rank, 1, &data[rank]));
        must(end_of(sent));
        r.shutdown();
        return "";
      }
      const RequestPtr received = start(r, message(K::kRecv, rank, leaver, 1, &inbox));
      const RequestPtr send = start(r, message(K::kSend, rank, leaver, 2, &data[rank]));
      must(finish(received));
      if (inbox != data[leaver]) return "wrong message";
      const Status unmatched = end_of(send);
      Floats more(4);
      const Status later = end_of(start(r, message(K::kRecv, rank, leaver, 3, &more)));
      r.shutdown();
      if (unmatched.code() != later.code()) return "codes: " + later.to_string();
      return unmatched.to_string();
    });
    const std::string& text = texts[static_cast<size_t>(1 - leaver)];
    CHECK_THAT(text, Contains("send '" + std::to_string(leaver) + ".2'") || Contains("send"));
    CHECK_THAT(text, Contains("rank " + std::to_string(leaver)) && Contains("has shut down"));
  }
}

TEST_CASE("an error of a message's work on a GPU ends the job with NCCL's text", "[messages_gpu]") {
  const Variable fault("STUB_NCCL_FAULT", "ncclSend:1:2:async");
  Floats data[2] = {Floats(4, 1), Floats(4, 1)};
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) {
    for (;;) {
      auto works = r.start(
          {message(rank == 1 ? K::kSend : K::kRecv, rank, 1 - rank, 1, &data[rank])}, false);
      const Status status = works.ok() ? end_of(works->front()) : works.status();
      if (!status.ok()) return status.message();
    }
  });
  for (const std::string& text : texts) CHECK_THAT(text, Contains("remote process exited"));
}

TEST_CASE("ranks whose GPUs do not fit hear it on both sides of a message", "[messages_gpu]") {
  const Variable one("FAKE_CUDA_ONE_UUID", "1");
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& r) -> std::string {
    Floats data(4, 1);
    const auto op = message(rank == 0 ? K::kSend : K::kRecv, rank, 1 - rank, 1, &data);
    const Status first = end_of(start(r, op));
    must(finish(start(r, sum_of("the job goes on", &data))));
    return first.message();
  });
  for (const std::string& text : texts)
    CHECK_THAT(text, Contains("several ranks use the same GPU"));
}

TEST_CASE("host time to send and receive a GPU tensor", "[.][submit]") {
  const Variable idle("FAKE_CUDA_IDLE", "1");
  GpuWorld gpus(2);
  std::vector<Floats> data(2, Floats(1000));
  const auto medians = gpus.world.run([&](Rank rank, Runtime& runtime) {
    std::vector<double> submits, ends;
    const auto op = message(rank == 0 ? K::kSend : K::kRecv, rank, 1 - rank, 1,
                            &data[static_cast<size_t>(rank)]);
    for (int step = 0; step < 3000; ++step) {
      const auto begun = Clock::now();
      const RequestPtr request = start(runtime, op);
      const auto submitted = Clock::now();
      must(end_of(request));
      const auto micros = [&](Clock::time_point until) {
        return std::chrono::duration<double, std::micro>(until - begun).count();
      };
      submits.push_back(micros(submitted));
      ends.push_back(micros(Clock::now()));
    }
    const auto median = [](std::vector<double> times) {
      times.erase(times.begin(), times.begin() + 500);
      std::sort(times.begin(), times.end());
      return times[times.size() / 2];
    };
    return std::pair(median(submits), median(ends));
  });
  for (const auto& [submit, end] : medians)
    std::printf("a message: %.1f us to submit, %.1f us until the GPU has it\n", submit, end);
}

}  // namespace rueda::testing

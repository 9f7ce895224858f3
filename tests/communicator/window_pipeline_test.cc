// The windowed allreduce with every rank driven by hand: who may go on when, and that no order of
// turns changes a bit.
#include "collectives/communicator/window_pipeline.h"

#include <catch2/catch.hpp>

#include <random>

namespace rueda::communicator {
namespace {

using transport::Arena;
using transport::Doorbell;

constexpr size_t kWindows = 2;
constexpr int64_t kChunkElements = 8192;  // of four bytes: too large for the one-shot road

struct Ranks {
  std::vector<std::shared_ptr<Arena>> arenas;
  std::vector<Doorbell> bells;
  std::vector<std::unique_ptr<WindowPipeline>> pipelines;
  std::vector<std::vector<int32_t>> data;
  std::vector<std::shared_ptr<AllreduceJob>> jobs;

  explicit Ranks(Rank size) {
    transport::ArenaLayout layout;
    layout.local_size = size;
    layout.chunk_bytes = kChunkElements * sizeof(int32_t);
    layout.windows = kWindows;
    layout.ring_bytes = 4096;
    std::vector<transport::Ringer> ringers;
    for (Rank rank = 0; rank < size; ++rank) {
      auto arena = Arena::create(layout, rank, 1);
      if (!arena.ok()) FAIL(arena.status().to_string());
      arenas.push_back(arena.value());
      auto bell = Doorbell::create(arena.value()->sleep_word());
      if (!bell.ok()) FAIL(bell.status().to_string());
      bells.push_back(std::move(bell).value());
      ringers.push_back(bells.back().ringer());
    }
    for (Rank rank = 0; rank < size; ++rank) {
      pipelines.push_back(std::make_unique<WindowPipeline>(rank, arenas, ringers));
    }
    data.resize(static_cast<size_t>(size));
  }
  // A sum in place over `count` elements: rank + element.
  void start(size_t rank, int64_t count) {
    data[rank].resize(static_cast<size_t>(count));
    for (size_t i = 0; i < data[rank].size(); ++i)
      data[rank][i] = static_cast<int32_t>(rank * 1000 + i);
    auto* bytes = reinterpret_cast<std::byte*>(data[rank].data());
    const std::vector<Part> parts{{bytes, bytes, count}};
    jobs.push_back(
        std::make_shared<AllreduceJob>(PartList(parts), DType::kInt32, ReduceOp::kSum, Scaling{}));
    pipelines[rank]->start(jobs.back());
  }
  bool finished() const {
    for (const auto& job : jobs) {
      if (!job->done) return false;
    }
    return true;
  }
};

TEST_CASE("a window is packed again only when everybody has unpacked what was in it", "[window]") {
  Ranks ranks(3);
  for (size_t rank = 0; rank < 3; ++rank) ranks.start(rank, 5 * kChunkElements);
  const auto packed = [&](size_t rank) { return ranks.arenas[rank]->windows()->packed.load(); };
  const auto reduced = [&](size_t rank) { return ranks.arenas[rank]->windows()->reduced.load(); };
  const auto unpacked = [&](size_t rank) { return ranks.arenas[rank]->windows()->unpacked.load(); };
  ranks.pipelines[0]->progress();
  CHECK(packed(0) == kWindows);
  CHECK(reduced(0) == 0);
  ranks.pipelines[1]->progress();
  CHECK(reduced(1) == 0);  // rank 2 has packed nothing
  ranks.pipelines[2]->progress();
  CHECK(reduced(2) == kWindows);
  CHECK(unpacked(2) == 0);  // ranks 0 and 1 have reduced nothing
  ranks.pipelines[0]->progress();
  ranks.pipelines[1]->progress();
  CHECK(unpacked(1) == kWindows);
  CHECK(packed(1) == kWindows);  // rank 0 and 2 still have to read its windows
  CHECK_FALSE(ranks.pipelines[1]->progress());
  ranks.pipelines[0]->progress();
  ranks.pipelines[2]->progress();
  CHECK(packed(2) == 2 * kWindows);
}

TEST_CASE("no order of turns changes the sum", "[window]") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto size = static_cast<Rank>(1 + seed % 5);
    Ranks ranks(size);
    // Nothing, one-shot chunks, one window, the last chunk shorter, many windows.
    for (const int64_t count :
         {int64_t{0}, int64_t{3}, kChunkElements, 3 * kChunkElements + 5, int64_t{700}}) {
      ranks.jobs.clear();
      for (size_t rank = 0; rank < ranks.data.size(); ++rank) ranks.start(rank, count);
      int turns = 0;
      while (!ranks.finished() && ++turns < 10'000)
        ranks.pipelines[random() % ranks.pipelines.size()]->progress();
      INFO("seed " << seed << " size " << size << " count " << count);
      REQUIRE(ranks.finished());
      bool right = true;
      for (const auto& result : ranks.data) {
        for (size_t i = 0; i < result.size(); ++i) {
          const auto n = static_cast<int32_t>(size);
          right &= result[i] == n * static_cast<int32_t>(i) + 1000 * n * (n - 1) / 2;
        }
      }
      REQUIRE(right);
    }
  }
}

TEST_CASE("an abandoned job's memory is not touched again", "[window]") {
  Ranks ranks(2);
  ranks.start(0, 3 * kChunkElements);
  ranks.start(1, 3 * kChunkElements);
  ranks.pipelines[0]->progress();
  ranks.pipelines[0]->abandon();
  ranks.data[0] = {};  // under AddressSanitizer a touch would be seen
  ranks.pipelines[1]->progress();
  CHECK_FALSE(ranks.pipelines[0]->progress());
  CHECK_FALSE(ranks.jobs[0]->done);
}

}  // namespace
}  // namespace rueda::communicator

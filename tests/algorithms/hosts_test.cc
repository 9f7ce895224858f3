// Groups that span hosts: who carries what, in which order is added, how much crosses the
// connections.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>

#include "collectives/algorithms/host_map.h"
#include "tests/support/patterns.h"
#include "tests/support/thread_world.h"

namespace rueda::testing {
namespace {

using algorithms::HostMap;
using algorithms::NativeCommunicator;

std::vector<Rank> everyone(Rank size) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

std::vector<float> noise(Rank rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 17);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> result(count);
  for (float& value : result) value = values(random) * 1e3f;
  return result;
}

Status allreduce(ThreadRank& world, NativeCommunicator& communicator, std::vector<float>* data) {
  const auto scaling =
      must(plan_scaling(DType::kFloat32, ReduceOp::kSum, 1, 1, communicator.size()));
  auto* bytes = reinterpret_cast<std::byte*>(data->data());
  return drive(
      world, communicator,
      testing::allreduce(communicator, {Part{bytes, bytes, static_cast<int64_t>(data->size())}},
                         DType::kFloat32, ReduceOp::kSum, scaling));
}

TEST_CASE("every slice has one leader on every host", "[hosts]") {
  const std::vector<std::vector<int>> layouts = {
      {0, 1},          {0, 0, 1, 1},          {0, 1, 0, 1},          {0, 0, 1},
      {7, 3, 3, 3, 7}, {0, 0, 0, 1, 1, 2, 2}, {0, 1, 1, 1, 1, 1, 2}, {0, 0, 1, 1, 2, 2, 3, 3}};
  for (const auto& layout : layouts) {
    for (Rank rank = 0; rank < static_cast<Rank>(layout.size()); ++rank) {
      const HostMap map(layout, rank);
      REQUIRE(map.local_members()[map.local()] == rank);
      for (size_t host = 0; host < map.hosts(); ++host) {
        const auto& members = map.members(host);
        REQUIRE(map.slices_begin(host, 0) == 0);
        REQUIRE(map.slices_begin(host, members.size()) == map.slices());
        for (size_t local = 0; local < members.size(); ++local) {
          REQUIRE(map.slices_begin(host, local) < map.slices_begin(host, local + 1));
          for (size_t s = map.slices_begin(host, local); s < map.slices_begin(host, local + 1); ++s)
            REQUIRE(map.leader(host, s) == members[local]);
        }
        for (size_t from = 0; from < map.hosts(); ++from) {
          size_t last = 0;
          for (size_t i = 0; i < map.members(from).size(); ++i) {
            const size_t proxy = map.proxy(host, from, i);
            REQUIRE(proxy < members.size());
            REQUIRE(proxy >= last);
            if (from == host) REQUIRE(proxy == i);
            last = proxy;
          }
        }
      }
    }
  }
  CHECK(HostMap({0, 0, 1, 1}, 0).consecutive());
  CHECK_FALSE(HostMap({0, 1, 0, 1}, 0).consecutive());
  CHECK(HostMap({0, 0, 1}, 0).has_levels());
  CHECK_FALSE(HostMap({0, 1, 2}, 0).has_levels());
  CHECK_FALSE(HostMap({0, 0}, 0).has_levels());
}

TEST_CASE("a host's ranks are added first, then the hosts in their order", "[hosts]") {
  const Rank size = 5;  // (0 1) (2 3) 4
  for (const size_t count : {size_t{10}, size_t{5000}, size_t{700001}}) {
    const auto worlds = make_worlds(Kind::kPairs, size);
    std::vector<float> wanted(count);
    std::vector<std::vector<float>> inputs;
    for (Rank rank = 0; rank < size; ++rank) inputs.push_back(noise(rank, count));
    for (size_t i = 0; i < count; ++i) {
      const float first = inputs[0][i] + inputs[1][i];
      const float second = inputs[2][i] + inputs[3][i];
      const float both = first + second;
      wanted[i] = both + inputs[4][i];
    }
    const auto results = on_ranks(size, [&](Rank rank) {
      ThreadRank& world = *worlds[static_cast<size_t>(rank)];
      NativeCommunicator communicator(world.group(everyone(size)));
      auto data = inputs[static_cast<size_t>(rank)];
      must(allreduce(world, communicator, &data));
      return data;
    });
    for (const auto& result : results)
      REQUIRE(std::memcmp(result.data(), wanted.data(), 4 * count) == 0);
  }
}

// Of a communicator that the same thread drives.
struct Arrivals final : shm::ArrivalWatch {
  std::vector<Rank> late;
  size_t came = 0;
  std::atomic<bool> waits{false};
  void missing(Rank rank) override {
    late.push_back(rank);
    waits = true;
  }
  void complete() override { ++came; }
};

void wait_until_set(const std::atomic<bool>& flag) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!flag) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("nobody waits");
    std::this_thread::yield();
  }
}

TEST_CASE("ranks hear for whom of their own host they wait, not of other hosts", "[hosts]") {
  const Rank size = 4;  // (0 1) (2 3)
  for (const size_t count : {size_t{10}, size_t{1'000'003}}) {
    const auto worlds = make_worlds(Kind::kPairs, size);
    std::vector<Arrivals> arrivals(static_cast<size_t>(size));
    on_ranks(size, [&](Rank rank) {
      ThreadRank& world = *worlds[static_cast<size_t>(rank)];
      Arrivals& own = arrivals[static_cast<size_t>(rank)];
      NativeCommunicator communicator(world.group(everyone(size)));
      communicator.watch(&own);
      if (rank == 3) wait_until_set(arrivals[2].waits);
      auto data = noise(rank, count);
      must(allreduce(world, communicator, &data));
      return 0;
    });
    CHECK(arrivals[2].late.front() == 3);
    for (const Rank rank : arrivals[2].late) CHECK(rank == 3);
    CHECK(arrivals[2].came == arrivals[2].late.size());
    for (const Rank rank : arrivals[0].late) CHECK(rank == 1);
    for (const Rank rank : arrivals[1].late) CHECK(rank == 0);
  }
}

TEST_CASE("a rank that has begun is not late when its share of the exchange is slow", "[hosts]") {
  const Rank size = 4;  // (0 1) (2 3)
  for (const auto kind : {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter}) {
    INFO(name_of(kind));
    const size_t count = 1'000'000;  // many chunks of an allreduce
    const auto worlds = make_worlds(Kind::kPairs, size);
    std::vector<Arrivals> arrivals(static_cast<size_t>(size));
    std::vector<std::unique_ptr<NativeCommunicator>> communicators;
    std::vector<std::vector<float>> data;
    std::vector<std::vector<float>> shards;
    std::vector<CollectivePtr> calls;
    for (Rank rank = 0; rank < size; ++rank) {
      const auto at = static_cast<size_t>(rank);
      communicators.push_back(
          std::make_unique<NativeCommunicator>(worlds[at]->group(everyone(size))));
      communicators.back()->watch(&arrivals[at]);
      data.push_back(noise(rank, count));
      shards.emplace_back(count / static_cast<size_t>(size));
      auto* bytes = reinterpret_cast<std::byte*>(data[at].data());
      const auto scaling = must(plan_scaling(DType::kFloat32, ReduceOp::kSum, 1, 1, size));
      const auto elements = static_cast<int64_t>(count);
      calls.push_back(kind == CollectiveKind::kAllreduce
                          ? testing::allreduce(*communicators[at], {Part{bytes, bytes, elements}},
                                               DType::kFloat32, ReduceOp::kSum, scaling)
                          : testing::reducescatter(
                                *communicators[at], bytes,
                                reinterpret_cast<std::byte*>(shards[at].data()),
                                std::vector<int64_t>(static_cast<size_t>(size), elements / size),
                                DType::kFloat32, ReduceOp::kSum, scaling));
    }
    // All begin before anybody looks; then rank 1 goes on only when nobody else can.
    const auto advance = [&](Rank rank) {
      const auto at = static_cast<size_t>(rank);
      worlds[at]->transport().park(std::chrono::nanoseconds(0));  // looks what has arrived
      bool moved = worlds[at]->transport().progress();
      moved |= communicators[at]->progress();
      return (!calls[at]->done() && calls[at]->advance()) || moved;
    };
    for (const CollectivePtr& call : calls) call->start({});
    for (const CollectivePtr& call : calls) call->advance();
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (
        !std::all_of(calls.begin(), calls.end(), [](const auto& call) { return call->done(); })) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      for (const Rank rank : {0, 2, 3}) {
        while (advance(rank) && std::chrono::steady_clock::now() < end) continue;
      }
      advance(1);
    }
    for (const Arrivals& own : arrivals) CHECK(own.late.empty());
  }
}

// Bytes of bodies that the ranks of each host sent to other hosts.
std::vector<double> crossed(const std::vector<std::unique_ptr<ThreadRank>>& worlds) {
  std::vector<double> hosts;
  for (const auto& world : worlds) {
    const auto host =
        static_cast<size_t>(world->memory().host_of[static_cast<size_t>(world->rank())]);
    hosts.resize(std::max(hosts.size(), host + 1));
    hosts[host] += static_cast<double>(world->transport().bytes_sent("tcp"));
  }
  return hosts;
}

TEST_CASE("an allreduce crosses each host's connection as often as it must", "[hosts]") {
  struct Layout {
    Kind kind;
    Rank size;
    double hosts;
  };
  for (const Layout& layout : {Layout{Kind::kPairs, 4, 2},
                               {Kind::kPairs, 3, 2},
                               {Kind::kPairs, 8, 4},
                               {Kind::kTriples, 5, 2},
                               {Kind::kTcp, 3, 3},
                               {Kind::kHybrid, 5, 2}}) {
    for (const bool compressed : {false, true}) {
      Config config;
      if (compressed) config.host_compression = "bf16";
      const auto worlds = make_worlds(layout.kind, layout.size, config);
      const size_t count = 1'000'003;
      on_ranks(layout.size, [&](Rank rank) {
        ThreadRank& world = *worlds[static_cast<size_t>(rank)];
        NativeCommunicator communicator(world.group(everyone(layout.size)));
        auto data = noise(rank, count);
        must(allreduce(world, communicator, &data));
        return 0;
      });
      const double bound = 2 * (layout.hosts - 1) / layout.hosts * count * (compressed ? 2.0 : 4.0);
      INFO(name_of(layout.kind) << " x " << layout.size << (compressed ? " bf16" : ""));
      double all = 0;
      for (const double bytes : crossed(worlds)) {
        CHECK(bytes <= 1.03 * bound);
        all += bytes;
      }
      CHECK(all >= layout.hosts * bound);  // a single host may have a little less than its shard
      CHECK(all <= 1.001 * layout.hosts * bound);
    }
  }
}

TEST_CASE("compressed between hosts, all ranks have the same bits, near the sum", "[hosts]") {
  for (const char* wire : {"bf16", "fp16"}) {
    for (const Kind kind : {Kind::kPairs, Kind::kTcp, Kind::kHybrid}) {
      const Rank size = 4;
      Config config;
      config.host_compression = wire;
      for (const size_t count : {size_t{100}, size_t{200'003}}) {
        const auto worlds = make_worlds(kind, size, config);
        const auto results = on_ranks(size, [&](Rank rank) {
          ThreadRank& world = *worlds[static_cast<size_t>(rank)];
          NativeCommunicator communicator(world.group(everyone(size)));
          auto data = noise(rank, count);
          for (float& value : data) value /= 1e3f;
          must(allreduce(world, communicator, &data));
          return data;
        });
        for (const auto& result : results) REQUIRE(result == results[0]);
        const float tolerance = std::string(wire) == "bf16" ? 0.04f : 0.005f;
        float worst = 0;
        std::vector<float> exact(count, 0);
        for (Rank rank = 0; rank < size; ++rank) {
          const auto data = noise(rank, count);
          for (size_t i = 0; i < count; ++i) exact[i] += data[i] / 1e3f;
        }
        for (size_t i = 0; i < count; ++i)
          worst = std::max(worst, std::abs(exact[i] - results[0][i]));
        CHECK(worst < tolerance);
        CHECK(worst > 0);  // it was compressed
      }
    }
  }
}

TEST_CASE("collectives over hosts that are under way together do not mix", "[hosts]") {
  for (const Kind kind : {Kind::kPairs, Kind::kTriples, Kind::kHybrid}) {
    const Rank size = 5;
    const auto worlds = make_worlds(kind, size);
    const auto errors = on_ranks(size, [&](Rank rank) -> std::string {
      ThreadRank& world = *worlds[static_cast<size_t>(rank)];
      NativeCommunicator communicator(world.group(everyone(size)));
      const auto scaling = must(plan_scaling(DType::kInt32, ReduceOp::kSum, 1, 1, size));
      constexpr int kCalls = 12;
      std::vector<std::vector<int32_t>> data;
      std::vector<std::vector<int32_t>> gathered;
      for (int call = 0; call < kCalls; ++call) {
        data.emplace_back(call % 3 == 0 ? 100 : 90'000 * (1 + call % 2), rank + call);
        gathered.emplace_back(data.back().size() * static_cast<size_t>(size));
      }
      std::vector<CollectivePtr> tasks;
      for (int call = 0; call < kCalls; ++call) {
        auto& vector = data[static_cast<size_t>(call)];
        auto* bytes = reinterpret_cast<std::byte*>(vector.data());
        const auto count = static_cast<int64_t>(vector.size());
        auto* all = reinterpret_cast<std::byte*>(gathered[static_cast<size_t>(call)].data());
        if (call % 4 == 1) {
          tasks.push_back(broadcast(communicator, call % size, {{bytes, bytes, 4 * count}}));
        } else if (call % 4 == 2) {
          tasks.push_back(allgather(
              communicator,
              {{bytes, all, std::vector<int64_t>(static_cast<size_t>(size), 4 * count)}}));
        } else {
          tasks.push_back(testing::allreduce(communicator, {Part{bytes, bytes, count}},
                                             DType::kInt32, ReduceOp::kSum, scaling));
        }
        tasks.back()->start({});
      }
      // The last first: what a rank does in which order must not matter.
      while (!tasks.empty()) {
        for (size_t i = tasks.size(); i-- > 0;) {
          tasks[i]->advance();
          communicator.progress();
          if (tasks[i]->done() && !tasks[i]->status().ok()) return tasks[i]->status().to_string();
        }
        if (std::all_of(tasks.begin(), tasks.end(), [](const auto& t) { return t->done(); })) break;
        if (!world.transport().progress()) world.transport().park(std::chrono::nanoseconds(0));
      }
      while (!world.transport().flushed()) {
        if (!world.transport().progress()) world.transport().park(std::chrono::milliseconds(1));
      }
      for (int call = 0; call < kCalls; ++call) {
        const auto& got =
            call % 4 == 2 ? gathered[static_cast<size_t>(call)] : data[static_cast<size_t>(call)];
        for (size_t i = 0; i < got.size(); ++i) {
          int32_t wanted = size * (size - 1) / 2 + size * call;
          if (call % 4 == 1) wanted = call % size + call;
          if (call % 4 == 2)
            wanted = static_cast<int32_t>(i / data[static_cast<size_t>(call)].size()) + call;
          if (got[i] != wanted) return "call " + std::to_string(call) + ": wrong result";
        }
      }
      return "";
    });
    for (const auto& error : errors) REQUIRE(error == "");
  }
}

}  // namespace
}  // namespace rueda::testing

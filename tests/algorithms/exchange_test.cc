// The ways to add up between hosts: which serves what, and that the choice changes no bit.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <random>

#include "collectives/algorithms/exchange.h"
#include "tests/support/thread_world.h"

namespace rueda::testing {
namespace {

using algorithms::choose_exchange;
using algorithms::Exchange;
using algorithms::HostMap;
using algorithms::NativeCommunicator;

TEST_CASE("latency decides for what is small, bytes for what is large", "[exchange]") {
  for (const int64_t bytes : {int64_t{4}, int64_t{512 << 10}})
    CHECK(choose_exchange(2, bytes) == Exchange::kDirect);  // never more bytes than the bound
  for (size_t hosts = 3; hosts <= 200; ++hosts) {
    const Exchange small = hosts <= 16 ? Exchange::kDirect : Exchange::kBruck;
    CHECK(choose_exchange(hosts, 4) == small);
    CHECK(choose_exchange(hosts, 512 << 10) == Exchange::kReduceScatterAllgather);
    bool was_large = false;
    for (int64_t bytes = 4; bytes <= 1 << 20; bytes *= 2) {
      const bool large = choose_exchange(hosts, bytes) == Exchange::kReduceScatterAllgather;
      CHECK(large >= was_large);
      was_large = large;
    }
  }
}

TEST_CASE("Bruck's allgather brings every host's slice once, of what its sender has",
          "[exchange]") {
  for (size_t hosts = 2; hosts <= 70; ++hosts) {
    size_t have = 1;  // blocks 0 .. have - 1, by distance to the right; alike on all hosts
    for (size_t round = 0; round < algorithms::bruck_rounds(hosts); ++round) {
      const auto r = algorithms::bruck_round(hosts, round);
      REQUIRE(r.distance == have);
      REQUIRE(r.blocks <= have);
      have += r.blocks;
    }
    REQUIRE(have == hosts);
    REQUIRE(algorithms::bruck_rounds(hosts) ==
            static_cast<size_t>(std::ceil(std::log2(static_cast<double>(hosts)))));
  }
}

struct RankLayout {
  Kind kind;
  Rank size;
};

std::vector<RankLayout> layouts() {
  if (is_short()) return {{Kind::kTcp, 3}, {Kind::kPairs, 3}, {Kind::kPairs, 4}};
  //      2 x 1             3 x 1             5 x 1             2 + 1
  return {{Kind::kTcp, 2},
          {Kind::kTcp, 3},
          {Kind::kTcp, 5},
          {Kind::kPairs, 3},
          //  2 x 2              3 x 2              4 x 2              3 + 2
          {Kind::kPairs, 4},
          {Kind::kPairs, 6},
          {Kind::kPairs, 8},
          {Kind::kTriples, 5}};
}

std::vector<float> thousands(Rank rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 17);
  std::uniform_real_distribution<float> values(-1e3f, 1e3f);
  std::vector<float> result(count);
  for (float& value : result) value = values(random);
  return result;
}

// The documented order: each host's ranks, then the hosts.
std::vector<float> added(const std::vector<int>& host_of, size_t count) {
  const HostMap map(host_of, 0);
  std::vector<float> total;
  for (size_t host = 0; host < map.hosts(); ++host) {
    std::vector<float> sum = thousands(map.members(host)[0], count);
    for (size_t i = 1; i < map.members(host).size(); ++i) {
      const auto next = thousands(map.members(host)[i], count);
      for (size_t k = 0; k < count; ++k) sum[k] += next[k];
    }
    if (host == 0) {
      total = sum;
    } else {
      for (size_t k = 0; k < count; ++k) total[k] += sum[k];
    }
  }
  return total;
}

// What all ranks have, for each count one after the other; empty if two of them differ.
std::vector<std::vector<float>> sums(const RankLayout& layout, const Config& config,
                                     const std::vector<size_t>& counts, std::vector<int>* host_of) {
  const auto worlds = make_worlds(layout.kind, layout.size, config);
  *host_of = worlds[0]->memory().host_of;
  const auto results = on_ranks(layout.size, [&](Rank rank) {
    ThreadRank& world = *worlds[static_cast<size_t>(rank)];
    std::vector<Rank> everyone;
    for (Rank member = 0; member < layout.size; ++member) everyone.push_back(member);
    NativeCommunicator communicator(world.group(std::move(everyone)));
    const auto scaling = must(plan_scaling(DType::kFloat32, ReduceOp::kSum, 1, 1, layout.size));
    std::vector<std::vector<float>> mine;
    for (const size_t count : counts) {
      auto data = thousands(rank, count);
      auto* bytes = reinterpret_cast<std::byte*>(data.data());
      must(drive(world, communicator,
                 allreduce(communicator, {Part{bytes, bytes, static_cast<int64_t>(count)}},
                           DType::kFloat32, ReduceOp::kSum, scaling)));
      mine.push_back(std::move(data));
    }
    return mine;
  });
  for (const auto& result : results) {
    for (size_t i = 0; i < counts.size(); ++i) {
      if (std::memcmp(result[i].data(), results[0][i].data(), 4 * counts[i]) != 0) return {};
    }
  }
  return results[0];
}

TEST_CASE("the way hosts add up changes no bit, and the order is the documented one",
          "[exchange]") {
  // One carrier; several messages without a grant; several chunks.
  const std::vector<size_t> counts = {1, 5000, is_short() ? size_t{50'000} : size_t{300'001}};
  for (const RankLayout& layout : layouts()) {
    for (const char* wire : {"none", "bf16"}) {
      std::vector<std::vector<float>> first;
      for (const char* exchange : {"auto", "direct", "bruck", "reduce-scatter"}) {
        INFO(name_of(layout.kind) << " x " << layout.size << " " << wire << " " << exchange);
        Config config;
        config.host_compression = wire;
        config.host_exchange = exchange;
        std::vector<int> host_of;
        const auto got = sums(layout, config, counts, &host_of);
        REQUIRE(got.size() == counts.size());
        if (first.empty()) first = got;
        for (size_t i = 0; i < counts.size(); ++i) {
          REQUIRE(std::memcmp(got[i].data(), first[i].data(), 4 * counts[i]) == 0);
          if (std::string(wire) == "none")
            REQUIRE(std::memcmp(got[i].data(), added(host_of, counts[i]).data(), 4 * counts[i]) ==
                    0);
        }
      }
    }
  }
}

TEST_CASE("many hosts take Bruck's allgather for small tensors", "[exchange]") {
  const RankLayout layout{Kind::kInproc, is_short() ? 17 : 21};
  REQUIRE(choose_exchange(static_cast<size_t>(layout.size), 4) == Exchange::kBruck);
  const std::vector<size_t> counts = {1, 100, 3000};
  std::vector<int> host_of;
  const auto got = sums(layout, {}, counts, &host_of);
  REQUIRE(got.size() == counts.size());
  for (size_t i = 0; i < counts.size(); ++i)
    REQUIRE(std::memcmp(got[i].data(), added(host_of, counts[i]).data(), 4 * counts[i]) == 0);
}

}  // namespace
}  // namespace rueda::testing

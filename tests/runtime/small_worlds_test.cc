// Seeded random histories of small worlds: every interleaving of request lists must end the same
// way.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "tests/runtime/virtual_world.h"

namespace rueda::testing {
namespace {

struct Plan {
  explicit Plan(unsigned seed) : random(seed) {}
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
  std::mt19937 random;
};

// The same tensors on all ranks; about every eighth disagrees on one rank; some in groups.
std::vector<std::vector<std::vector<wire::Request>>> make_step(Plan* plan, Rank size, int names) {
  std::vector<std::vector<std::vector<wire::Request>>> calls(static_cast<size_t>(size));
  for (int i = 0; i < names;) {
    const int members = std::min(names - i, plan->pick(0, 3) == 0 ? plan->pick(2, 3) : 1);
    const bool disagree = plan->pick(0, 7) == 0;
    const auto culprit = static_cast<size_t>(plan->pick(0, size - 1));
    const std::string group = "allreduce.t" + std::to_string(i);
    for (size_t rank = 0; rank < calls.size(); ++rank) {
      std::vector<wire::Request> call;
      for (int m = 0; m < members; ++m) {
        wire::Request r = request("t" + std::to_string(i + m), 10 + i);
        if (members > 1) r = grouped(r, group, static_cast<uint32_t>(members));
        if (disagree && rank == culprit && m == members - 1) r.dtype = DType::kInt64;
        call.push_back(r);
      }
      calls[rank].push_back(call);
    }
    i += members;
  }
  return calls;
}

// Deals every rank's calls out in its own order, in lists of random length; now and then a thread
// waits.
void play(VirtualWorld* world, Plan* plan,
          std::vector<std::vector<std::vector<wire::Request>>> calls, double* now) {
  for (auto& of_rank : calls) std::shuffle(of_rank.begin(), of_rank.end(), plan->random);
  const auto left = [&] {
    return std::any_of(calls.begin(), calls.end(),
                       [](const auto& of_rank) { return !of_rank.empty(); });
  };
  while (left()) {
    const auto rank = static_cast<size_t>(plan->pick(0, static_cast<int>(calls.size()) - 1));
    std::vector<wire::Request> list;
    for (int n = plan->pick(1, 3); n > 0 && !calls[rank].empty(); --n) {
      list.insert(list.end(), calls[rank].back().begin(), calls[rank].back().end());
      calls[rank].pop_back();
    }
    *now += plan->pick(0, 3) * 0.001;
    REQUIRE(world->submit(static_cast<Rank>(rank), list, *now).ok());
    if (plan->pick(0, 4) == 0 && !list.empty())
      REQUIRE(world->await(static_cast<Rank>(rank), list[0].name, *now).ok());
    if (plan->pick(0, 1) == 0) world->deliver(*now);
  }
  *now += 0.01;
  world->deliver(*now);
}

TEST_CASE(
    "in random small worlds every tensor is answered once, in one order, the same on all ranks",
    "[root]") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Plan plan(seed);
    Config config;
    config.fusion_threshold_bytes = plan.pick(0, 1) == 0 ? 0 : 400;
    config.cache_capacity = plan.pick(0, 3) == 0 ? 3 : 1024;
    VirtualWorld world(plan.pick(1, 5), config);
    double now = 0;
    const int names = plan.pick(1, 12);
    const auto calls = make_step(&plan, static_cast<Rank>(world.ranks.size()), names);
    for (int round = 0; round < 6; ++round) {
      play(&world, &plan, calls, &now);
      for (VirtualRank& rank : world.ranks) {
        REQUIRE(rank.trouble == "");
        REQUIRE(rank.pending.empty());
        REQUIRE(rank.answered == world.ranks[0].answered);
        std::vector<std::string> once = rank.answered;
        std::sort(once.begin(), once.end());
        REQUIRE(once.size() == static_cast<size_t>(names));
        REQUIRE(std::unique(once.begin(), once.end()) == once.end());
      }
      for (VirtualRank& rank : world.ranks) {
        for (const auto& [name, status] : rank.last) {
          REQUIRE(status.message() == world.ranks[0].last.at(name).message());
        }
        rank.answered.clear();
      }
      REQUIRE_FALSE(world.root.next_deadline());
    }
  }
}

TEST_CASE("a rank that leaves in the middle of a random step leaves nobody waiting", "[root]") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Plan plan(seed);
    VirtualWorld world(plan.pick(2, 5), {});
    const auto size = static_cast<Rank>(world.ranks.size());
    double now = 0;
    auto calls = make_step(&plan, size, plan.pick(1, 10));
    play(&world, &plan, calls, &now);
    play(&world, &plan, calls, &now);
    // The leaver has submitted a part of its step only.
    const Rank leaver = plan.pick(0, size - 1);
    auto& part = calls[static_cast<size_t>(leaver)];
    part.resize(static_cast<size_t>(plan.pick(0, static_cast<int>(part.size()))));
    std::vector<std::vector<std::vector<wire::Request>>> before(calls.size());
    for (size_t rank = 0; rank < calls.size(); ++rank) {
      const auto cut =
          calls[rank].begin() +
          plan.pick(static_cast<Rank>(rank) == leaver ? static_cast<int>(calls[rank].size()) : 0,
                    static_cast<int>(calls[rank].size()));
      before[rank].assign(calls[rank].begin(), cut);
      calls[rank].erase(calls[rank].begin(), cut);
    }
    play(&world, &plan, before, &now);
    wire::RequestList leaving;
    leaving.leaving = true;
    REQUIRE(world.root.on_requests(leaver, leaving, at(now)).ok());
    world.deliver(now);
    play(&world, &plan, calls, &now);
    for (Rank rank = 0; rank < size; ++rank) {
      REQUIRE(world.ranks[static_cast<size_t>(rank)].trouble == "");
      if (rank != leaver) REQUIRE(world.ranks[static_cast<size_t>(rank)].pending.empty());
    }
  }
}

}  // namespace
}  // namespace rueda::testing

// Agreement under a simulated network: what must hold whatever the order of events.
//
//   each operation ends exactly once; all ranks run the same batches in the same order, negotiated
//   and planned; a planned batch runs on one rank if and only if on all; nothing hangs; every step
//   of the channels is one that the model allows
#include <catch2/catch.hpp>

#include <string>

#include "tests/runtime/requests.h"
#include "tests/simulation/seeds.h"
#include "tests/simulation/sim_rank.h"

namespace rueda::testing {
namespace {

TEST_CASE("agreement holds for every seed", "[seeds]") {
  const auto [first, seeds] = Seeds(5000);
  int64_t planned = 0;
  int64_t revocations = 0;
  int64_t evictions = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const SimResult result = simulate(random_job(seed), seed);
    evictions += result.evictions;
    INFO("replay: RUEDA_SIMULATION_SEED=" << seed << " simulation_test [seeds]");
    REQUIRE(result.failure == "");
    planned += result.planned_runs;
    revocations += result.revocations;
  }
  if (seeds < 100) return;
  CHECK(planned > static_cast<int64_t>(seeds));          // plans were really followed,
  CHECK(revocations > static_cast<int64_t>(seeds / 4));  // and left
  CHECK(evictions > static_cast<int64_t>(seeds));        // full caches forgot
}

TEST_CASE("ranks that make fewer steps join, in and out of step plans, for every seed", "[joins]") {
  const auto [first, seeds] = Seeds(3000);
  int64_t planned = 0;
  int64_t revocations = 0;
  int64_t neutrals = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const SimResult result = simulate(joining_job(seed), seed);
    INFO("replay: RUEDA_SIMULATION_SEED=" << seed << " simulation_test [joins]");
    REQUIRE(result.failure == "");
    planned += result.planned_runs;
    revocations += result.revocations;
    neutrals += result.neutrals;
  }
  if (seeds < 100) return;
  CHECK(planned > static_cast<int64_t>(seeds));
  CHECK(revocations > static_cast<int64_t>(seeds / 4));
  CHECK(neutrals > static_cast<int64_t>(seeds));
}

TEST_CASE("a steady job sends no control message once its plan is frozen", "[simulation]") {
  const Rank size = GENERATE(1, 2, 3, 6);
  const bool blocking = GENERATE(false, true);
  const SimResult result = simulate(steady_job(size, 40, 5, blocking), 11);
  CHECK(result.failure == "");
  REQUIRE(result.messages_by_step.size() >= 40);
  CHECK(result.messages_by_step[12] == result.messages_by_step[38]);
  CHECK(result.planned_runs > 0);
  CHECK(result.revocations == size);  // at the end, when they leave
}

TEST_CASE("a rank that is late in a plan is named", "[simulation]") {
  Job job = steady_job(3, 30, 4, false);
  auto& late = job.ranks[1];
  late.insert(late.begin() + static_cast<std::ptrdiff_t>(late.size() / 2),
              {Action::Kind::kThink, {}, "", 15, 10'000'000'000});
  const SimResult result = simulate(job, 3);
  CHECK(result.failure == "");
  CHECK(result.revocations == 6);  // when it was late and when they left
  REQUIRE_FALSE(result.notes.empty());
  CHECK(result.notes.front().find("not yet submitted by rank 1") != std::string::npos);
}

// t0 and t1 go out in turn until the third cycle lacks t1 alone; then both are submitted at once,
// t0 in two shapes. So t1 completes the cycle while t0's error is held back for its call sites.
TEST_CASE("a cycle that completes while ranks disagree about a member of it", "[simulation]") {
  const Rank size = GENERATE(2, 3, 5);
  const auto t0 = request("t0");
  const auto t1 = request("t1");
  const std::vector<std::vector<wire::Request>> before = {{t0}, {t1}, {t0}, {t1}, {t0}};
  Job job;
  job.size = size;
  job.config.fusion_threshold_bytes = 16;  // each tensor goes alone
  job.mismatches = 1;
  for (Rank rank = 0; rank < size; ++rank) {
    auto units = before;
    units.push_back({rank == 1 ? request("t0", 5) : t0, t1});
    for (int i = 0; i < 5; ++i) units.insert(units.end(), {{t0}, {t1}});
    auto& actions = job.ranks.emplace_back();
    int number = 0;
    for (const auto& unit : units) {
      actions.push_back({Action::Kind::kSubmit, unit, "", number});
      for (const auto& r : unit) actions.push_back({Action::Kind::kWait, {}, r.name, number});
      ++number;
    }
    actions.push_back({Action::Kind::kLeave, {}, "", number});
  }
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SimResult result = simulate(job, seed);
    INFO("seed " << seed);
    CHECK(result.failure == "");
    CHECK(result.planned_runs == 10 * size);  // frozen behind the error, followed to the end
  }
}

TEST_CASE("the simulation finds planted mistakes", "[simulation]") {
  const Bug bug = GENERATE(Bug::kMostInsteadOfLeast, Bug::kRunBeforeAllHaveEntered,
                           Bug::kBackBeforeItsBatchesEnded);
  bool found = false;
  for (uint64_t seed = 0; seed < 200 && !found; ++seed) {
    found = !simulate(random_job(seed), seed, bug).failure.empty();
  }
  CHECK(found);
}

}  // namespace
}  // namespace rueda::testing

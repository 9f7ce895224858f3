// The same between hosts (simulation_test.cc says what must hold), and what a crash or a lost
// connection does there: nobody waits for ever, and nobody was given what another takes back.
#include <catch2/catch.hpp>

#include <string>

#include "tests/simulation/seeds.h"
#include "tests/simulation/sim_rank.h"

namespace rueda::testing {
namespace {

TEST_CASE("agreement between hosts holds for every seed", "[seeds][hosts]") {
  const auto [first, seeds] = Seeds(2000);
  int64_t planned = 0, revocations = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const SimResult result = simulate(between_hosts(random_job(seed), seed), seed);
    INFO("replay: RUEDA_SIMULATION_SEED=" << seed << " simulation_test [seeds][hosts]");
    REQUIRE(result.failure == "");
    planned += result.planned_runs;
    revocations += result.revocations;
  }
  if (seeds < 100) return;
  CHECK(planned > static_cast<int64_t>(seeds));
  CHECK(revocations > static_cast<int64_t>(seeds / 4));
}

TEST_CASE("one generation after the other, with messages late and early, for every seed",
          "[generations][hosts]") {
  const auto [first, seeds] = Seeds(600);
  int64_t late = 0, early = 0, overtaken = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Job job = between_hosts(restless_job(seed), seed);
    const SimResult result = simulate(job, seed);
    INFO("replay: RUEDA_SIMULATION_SEED=" << seed << " simulation_test [generations]");
    REQUIRE(result.failure == "");
    if (job.one_stream && job.ranks_per_host == 1) REQUIRE(result.overtaken == 0);
    late += result.late_data;
    early += result.early_data;
    overtaken += result.overtaken;
  }
  if (seeds < 100) return;
  CHECK(late > static_cast<int64_t>(seeds / 4));     // data of generations that were over,
  CHECK(early > static_cast<int64_t>(seeds / 100));  // of one that had not begun at its receiver,
  CHECK(overtaken > static_cast<int64_t>(seeds));    // and last words that were there before data
}

TEST_CASE("ranks join between hosts, for every seed", "[joins][hosts]") {
  const auto [first, seeds] = Seeds(1000);
  int64_t neutrals = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const SimResult result = simulate(between_hosts(joining_job(seed), seed), seed);
    INFO("replay: RUEDA_SIMULATION_SEED=" << seed << " simulation_test [joins][hosts]");
    REQUIRE(result.failure == "");
    neutrals += result.neutrals;
  }
  if (seeds >= 100) CHECK(neutrals > static_cast<int64_t>(seeds));
}

TEST_CASE("a steady job between hosts sends no control message once its plan is frozen",
          "[hosts]") {
  const Rank size = GENERATE(2, 3, 4, 6);
  const bool blocking = GENERATE(false, true);
  Job job = steady_job(size, 40, 5, blocking);
  job.ranks_per_host = GENERATE(1, 2);
  job.one_stream = GENERATE(false, true);
  const SimResult result = simulate(job, 11);
  CHECK(result.failure == "");
  REQUIRE(result.messages_by_step.size() >= 40);
  CHECK(result.messages_by_step[12] == result.messages_by_step[38]);
  CHECK(result.planned_runs > 0);
  CHECK(result.revocations == size);  // at the end, when they leave
}

// Where ranks may be: each alone with streams of either kind, two and two.
Job steady_between_hosts() {
  const bool mixed = GENERATE(false, true);
  Job job = steady_job(mixed ? 4 : 3, 25, 4, GENERATE(false, true));
  job.ranks_per_host = mixed ? 2 : 1;
  job.one_stream = GENERATE(false, true);
  return job;
}

// A fault at each of many moments of a job that is the same until then.
template <typename Fault>
void at_any_moment(const Job& job, uint64_t seed, Rank to_break, const Fault& fault) {
  constexpr int kMoments = 60;
  const int64_t end = simulate(job, seed).first_to_leave_ns;
  int in_plan = 0;
  for (int moment = 0; moment < kMoments; ++moment) {
    Job faulty = job;
    fault(&faulty, end * moment / kMoments);
    const SimResult result = simulate(faulty, seed);
    INFO("moment " << moment << " seed " << seed);
    REQUIRE(result.failure == "");
    REQUIRE(result.broken_ranks == to_break);
    in_plan += result.hit_plan;
  }
  CHECK(in_plan > kMoments / 2);
}

TEST_CASE("a rank that crashes at any moment ends the job on all others", "[hosts]") {
  const Job job = steady_between_hosts();
  for (Rank crasher = 0; crasher < job.size; ++crasher) {
    at_any_moment(job, static_cast<uint64_t>(crasher), job.size - 1, [&](Job* faulty, int64_t at) {
      faulty->crash_at = at;
      faulty->crasher = crasher;
    });
  }
}

TEST_CASE("a connection that is cut at any moment ends the job on all ranks", "[hosts]") {
  const Job job = steady_between_hosts();
  for (Rank one = 0; one < job.size; ++one) {
    for (Rank other = one + 1; other < job.size; ++other) {
      if (one / job.ranks_per_host == other / job.ranks_per_host) continue;
      at_any_moment(job, static_cast<uint64_t>(one + other), job.size,
                    [&](Job* faulty, int64_t at) { faulty->cut = {at, one, other}; });
    }
  }
}

// Deviates from its plans, or has one after the other.
Job unsteady_job(uint64_t seed) {
  return between_hosts(seed % 2 == 0 ? restless_job(seed) : random_job(seed), seed);
}

TEST_CASE("faults in unsteady jobs, for every seed", "[faults][hosts]") {
  const auto [first, seeds] = Seeds(1000);
  int64_t in_plan = 0;
  int64_t broken = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    Job job = unsteady_job(seed);
    const auto one = static_cast<Rank>(seed / 4) % job.size;
    const auto other = static_cast<Rank>(one + 1) % job.size;
    job.crash_at = -1;
    const int64_t at = simulate(job, seed).first_to_leave_ns / 97 * static_cast<int64_t>(seed % 97);
    if (seed / 2 % 2 == 0) {
      job.crash_at = at;
      job.crasher = one;
    } else if (one != other) {
      job.cut = {at, one, other};
    }
    const SimResult result = simulate(job, seed);
    INFO("replay: RUEDA_SIMULATION_SEED=" << seed << " simulation_test [faults]");
    REQUIRE(result.failure == "");
    in_plan += result.hit_plan;
    broken += result.broken_ranks;
  }
  if (seeds < 100) return;
  CHECK(in_plan > static_cast<int64_t>(seeds / 4));
  CHECK(broken > static_cast<int64_t>(seeds));
}

TEST_CASE("the simulation finds planted mistakes between hosts", "[hosts]") {
  const Bug bug =
      GENERATE(Bug::kMostInsteadOfLeast, Bug::kRunBeforeAllHaveEntered,
               Bug::kBackBeforeItsBatchesEnded, Bug::kRunOnLastWordAlone, Bug::kOldDataCounts,
               Bug::kOldLastWordCounts, Bug::kDropsWhatIsEarly, Bug::kForgetsOneMember);
  bool found = false;
  for (uint64_t seed = 0; seed < 300 && !found; ++seed)
    found = !simulate(unsteady_job(seed), seed, bug).failure.empty();
  CHECK(found);
}

TEST_CASE("the simulation finds a rank that keeps the loss of its peer to itself", "[hosts]") {
  Job job = steady_job(3, 25, 4, false);
  job.ranks_per_host = 1;
  job.cut = {300'000, 0, 1};
  CHECK(simulate(job, 1).failure == "");
  CHECK(simulate(job, 1, Bug::kKeepsLossToItself).failure.find("rank 2 has not ended") !=
        std::string::npos);
}

}  // namespace
}  // namespace rueda::testing

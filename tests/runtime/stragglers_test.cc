#include <catch2/catch.hpp>

#include <optional>
#include <vector>

#include "runtime/engine/late_ranks.h"
#include "runtime/engine/stragglers.h"

namespace rueda::testing {
namespace {

using engine::BlockedClock;
using engine::LateRanks;
using engine::Stragglers;
using Nanos = Stragglers::Nanos;

constexpr Nanos kMs = 1'000'000;

// The step (from 1) in which the rank is named when it is `cost` late in each of them.
std::optional<int> named_at(Stragglers* stragglers, Rank rank, Nanos cost, Nanos step, int steps,
                            Nanos begin = 1) {
  for (int i = 1; i <= steps; ++i) {
    const auto finding = stragglers->late(rank, cost, begin + i * step);
    if (finding) {
      CHECK(finding->rank == rank);
      CHECK(finding->mean == cost);
      CHECK(finding->share == Approx(double(cost) / double(step)).epsilon(0.2));
      return i;
    }
  }
  return std::nullopt;
}

TEST_CASE("a rank that is 20 ms late in every step is named within 20 steps", "[stragglers]") {
  for (const Nanos step : {21 * kMs, 50 * kMs, 300 * kMs}) {
    Stragglers stragglers(4);
    const auto step_named = named_at(&stragglers, 2, 20 * kMs, step, 20);
    REQUIRE(step_named);
    CHECK(*step_named <= 20);
  }
}

TEST_CASE("lateness that costs little is not worth a word", "[stragglers]") {
  Stragglers stragglers(4);
  CHECK_FALSE(named_at(&stragglers, 2, 20 * kMs, 1000 * kMs, 500));  // 2 % of the time
  CHECK_FALSE(named_at(&stragglers, 2, kMs / 2, kMs, 500));          // half a millisecond
  Stragglers young(4);
  CHECK_FALSE(named_at(&young, 2, 5 * kMs, 6 * kMs, 19));  // a tenth of a second is not reached
}

TEST_CASE("ranks that are late in turns are not named", "[stragglers]") {
  for (const int size : {2, 4}) {
    Stragglers stragglers(size);
    for (int i = 0; i < 500; ++i) {
      CHECK_FALSE(stragglers.late(static_cast<Rank>(i % size), 20 * kMs, (i + 1) * 50 * kMs));
    }
  }
}

TEST_CASE("a rank that is always late is named also where others are late now and then",
          "[stragglers]") {
  Stragglers stragglers(2);
  std::optional<int> step_named;
  for (int step = 1; step <= 20 && !step_named; ++step) {
    if (step % 3 == 0) CHECK_FALSE(stragglers.late(0, 8 * kMs, step * 50 * kMs - 25 * kMs));
    if (stragglers.late(1, 20 * kMs, step * 50 * kMs)) step_named = step;
  }
  CHECK(step_named.has_value());
}

TEST_CASE("all tensors of one late step are one incident", "[stragglers]") {
  Stragglers stragglers(2);
  Nanos now = 1000 * kMs;
  for (int step = 0; step < 7; ++step, now += 100 * kMs) {
    for (int tensor = 0; tensor < 30; ++tensor) {
      now += 2 * kMs;
      CHECK_FALSE(stragglers.late(1, 2 * kMs, now, tensor > 0));
    }
  }
  CHECK(stragglers.late(1, 2 * kMs, now));
  CHECK(stragglers.totals()[0].seconds == Approx((7 * 30 + 1) * 0.002));
}

TEST_CASE("a pause of the program does not hide a straggler for long", "[stragglers]") {
  Stragglers stragglers(2);
  CHECK_FALSE(stragglers.late(1, 20 * kMs, 1000 * kMs));
  const Nanos after_pause = 1'000'000 * kMs;
  std::optional<int> step_named;
  for (int step = 1; step <= 20 && !step_named; ++step) {
    if (stragglers.late(1, 20 * kMs, after_pause + step * 40 * kMs)) step_named = step;
  }
  CHECK(step_named.has_value());
}

TEST_CASE("a rank is named at growing intervals", "[stragglers]") {
  Stragglers stragglers(2);
  std::vector<Nanos> named;
  for (Nanos now = 50 * kMs; now < 1'000'000 * kMs; now += 50 * kMs) {
    if (stragglers.late(1, 20 * kMs, now)) named.push_back(now);
  }
  REQUIRE(named.size() >= 3);
  CHECK(named.size() <= 5);  // in 1000 s: at once, then after 60, 120, 240, 480 s
  for (size_t i = 2; i < named.size(); ++i)
    CHECK(named[i] - named[i - 1] > named[i - 1] - named[i - 2]);
}

TEST_CASE("the totals name who was waited for longest first", "[stragglers]") {
  Stragglers stragglers(3);
  stragglers.late(0, 2 * kMs, 10 * kMs);
  stragglers.late(2, 5 * kMs, 20 * kMs);
  stragglers.late(2, 5 * kMs, 30 * kMs);
  const auto totals = stragglers.totals();
  REQUIRE(totals.size() == 2);
  CHECK((totals[0].rank == 2 && totals[0].count == 2 && totals[0].seconds == Approx(0.010)));
  CHECK(totals[1].rank == 0);
}

TEST_CASE("what comes late while nobody sleeps costs nothing", "[stragglers]") {
  BlockedClock blocked;
  LateRanks late(2, &blocked, {});
  LateRanks::Group all(&late, {0, 1}, 0);
  all.missing(1, false);
  all.complete();
  all.decided(1, 10 * kMs, 90 * kMs);
  CHECK(late.totals().empty());
  const BlockedClock::Sleep asleep(&blocked);
  all.missing(1, false);
  all.complete();
  REQUIRE(late.totals().size() == 1);
  CHECK(late.totals()[0].rank == 1);
}

TEST_CASE("a root that is last itself is late for as long as the others have been there",
          "[stragglers]") {
  BlockedClock blocked;
  LateRanks late(2, &blocked, {});
  LateRanks::Group all(&late, {0, 1}, 0);
  all.decided(0, 10 * kMs, 30 * kMs);
  all.decided(0, 12 * kMs, 31 * kMs);  // beside it: only the last millisecond is new
  REQUIRE(late.totals().size() == 1);
  CHECK(late.totals()[0].seconds == Approx(0.021));
}

TEST_CASE("in a step plan the root speaks of the others, and rank 1 of the root", "[stragglers]") {
  for (const Rank speaker : {0, 1, 2}) {
    for (const Rank straggler : {0, 1, 2}) {
      if (speaker == straggler) continue;
      int spoken = 0;
      BlockedClock blocked;
      LateRanks late(3, &blocked, [&](const Stragglers::Finding&) { ++spoken; });
      LateRanks::Group all(&late, {0, 1, 2}, speaker);
      const BlockedClock::Sleep asleep(&blocked);
      for (int step = 0; step < 12; ++step) {
        all.missing(straggler, false);
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
        while (std::chrono::steady_clock::now() < end) {
        }
        all.complete();
      }
      INFO("speaker " << speaker << ", straggler " << straggler);
      CHECK(spoken == ((straggler != 0 && speaker == 0) || (straggler == 0 && speaker == 1)));
    }
  }
}

TEST_CASE("members of a process set are known by their ranks in the job", "[stragglers]") {
  BlockedClock blocked;
  LateRanks late(6, &blocked, {});
  LateRanks::Group odd(&late, {1, 3, 5}, 0);
  odd.decided(0, 10 * kMs, 30 * kMs);
  const BlockedClock::Sleep asleep(&blocked);
  odd.missing(2, false);
  odd.complete();
  const auto totals = late.totals();
  REQUIRE(totals.size() == 2);
  CHECK((totals[0].rank == 1 && totals[1].rank == 5));
}

TEST_CASE("nobody sleeps unless a thread does", "[stragglers]") {
  BlockedClock blocked;
  CHECK(blocked.since() == 0);
  {
    const BlockedClock::Sleep one(&blocked);
    const auto since = blocked.since();
    CHECK(since > 0);
    const BlockedClock::Sleep two(&blocked);
    CHECK(blocked.since() == since);
    const BlockedClock::Sleep nobody(nullptr);
  }
  CHECK(blocked.since() == 0);
}

}  // namespace
}  // namespace rueda::testing

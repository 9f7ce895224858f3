#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/engine/late_ranks.h"
#include "runtime/engine/slow_rank.h"
#include "runtime/engine/stragglers.h"

namespace rueda::testing {
namespace {

using engine::BlockedClock;
using engine::LateRanks;
using engine::Stragglers;
using Nanos = Stragglers::Nanos;

constexpr Nanos kMs = 1'000'000;
constexpr Nanos kSecond = 1'000 * kMs;
constexpr Nanos kBegun = 1'000'000 * kSecond + 350 * kMs;

// When the rank is found slow that is `cost` late in every step from `begin` to `end` (of the job).
std::optional<Nanos> slow_at(Stragglers* stragglers, Rank rank, Nanos cost, Nanos step, Nanos begin,
                             Nanos end) {
  for (Nanos at = begin + step; at <= end; at += step) {
    stragglers->late(rank, cost, kBegun + at);
    const auto finding = stragglers->judge(rank, kBegun + at);
    if (!finding) continue;
    CHECK(finding->rank == rank);
    CHECK(finding->times > 0);
    return at;
  }
  return std::nullopt;
}

TEST_CASE("a rank that costs a tenth of the time is slow once the job is ten seconds old",
          "[stragglers]") {
  for (const Nanos step : {21 * kMs, 50 * kMs, 150 * kMs}) {
    Stragglers stragglers(4, kBegun);
    const auto at = slow_at(&stragglers, 2, 20 * kMs, step, 0, 60 * kSecond);
    INFO("steps of " << step / kMs << " ms");
    REQUIRE(at);
    CHECK(*at >= 10 * kSecond);
    CHECK(*at < 10 * kSecond + step);
  }
}

TEST_CASE("what is said of a slow rank is what it cost in the last ten seconds", "[stragglers]") {
  Stragglers stragglers(2, kBegun);
  for (Nanos at = kSecond; at <= 40 * kSecond; at += 100 * kMs)
    stragglers.late(1, 30 * kMs, kBegun + at);
  const auto finding = stragglers.judge(1, kBegun + 40 * kSecond);
  REQUIRE(finding);
  CHECK(finding->share == Approx(0.3).epsilon(0.1));
  CHECK(double(finding->cost) == Approx(3e9).epsilon(0.1));
  CHECK(double(finding->times) == Approx(100).epsilon(0.1));
}

TEST_CASE("in a job's first ten seconds nobody is slow", "[stragglers]") {
  Stragglers stragglers(2, kBegun);
  CHECK_FALSE(slow_at(&stragglers, 1, 90 * kMs, 100 * kMs, 0, 10 * kSecond - 1));
  CHECK(slow_at(&stragglers, 1, 90 * kMs, 100 * kMs, 10 * kSecond, 11 * kSecond));
}

TEST_CASE("a rank becomes slow when it has been so for long enough, not before", "[stragglers]") {
  Stragglers stragglers(2, kBegun);
  const auto at = slow_at(&stragglers, 1, 20 * kMs, 100 * kMs, 1000 * kSecond, 1060 * kSecond);
  REQUIRE(at);  // a fifth of each second: a tenth of ten seconds is reached in the fifth
  CHECK(*at > 1004 * kSecond);
  CHECK(*at < 1006 * kSecond);
}

TEST_CASE("lateness that costs little is not worth a word", "[stragglers]") {
  Stragglers stragglers(4, kBegun);
  CHECK_FALSE(slow_at(&stragglers, 2, 20 * kMs, 250 * kMs, 0, 600 * kSecond));  // 8 % of the time
}

TEST_CASE("a single pause makes nobody slow, however long it is", "[stragglers]") {
  Stragglers stragglers(2, kBegun);
  for (const Nanos pause : {2 * kSecond, 9 * kSecond, 100 * kSecond}) {
    const Nanos now = kBegun + 1000 * pause;
    stragglers.late(1, 30 * kMs, now - pause);
    stragglers.late(1, pause, now);
    for (int tensor = 0; tensor < 30; ++tensor) {
      stragglers.late(1, 2 * kMs, now + tensor * 2 * kMs);
      CHECK_FALSE(stragglers.judge(1, now + tensor * 2 * kMs));
    }
  }
  const Nanos now = kBegun + 1'000'000 * kSecond;
  for (int pause = 1; pause <= 3; ++pause) {  // one in every step is another matter
    stragglers.late(1, kSecond, now + pause * 3 * kSecond);
    CHECK(stragglers.judge(1, now + pause * 3 * kSecond).has_value() == (pause > 1));
  }
}

TEST_CASE("ranks that are late in turns are not named", "[stragglers]") {
  for (const int size : {2, 4}) {
    Stragglers stragglers(size, kBegun);
    for (int i = 0; i < 1000; ++i) {
      const Rank rank = static_cast<Rank>(i % size);
      const Nanos now = kBegun + (i + 1) * 50 * kMs;
      stragglers.late(rank, 20 * kMs, now);
      if (i > size) CHECK_FALSE(stragglers.judge(rank, now));
    }
  }
}

TEST_CASE("a rank that is always late is named also where others are late now and then",
          "[stragglers]") {
  Stragglers stragglers(2, kBegun);
  bool named = false;
  for (int step = 1; step <= 220; ++step) {
    const Nanos now = kBegun + step * 50 * kMs;
    if (step % 3 == 0) {
      stragglers.late(0, 8 * kMs, now - 25 * kMs);
      CHECK_FALSE(stragglers.judge(0, now - 25 * kMs));
    }
    stragglers.late(1, 20 * kMs, now);
    named |= stragglers.judge(1, now).has_value();
  }
  CHECK(named);
}

TEST_CASE("a rank that has waited for the others nearly as long is not slow", "[stragglers]") {
  for (const int percent : {0, 45, 55, 100}) {
    Stragglers stragglers(2, kBegun);
    bool slow = false;
    Nanos slept = 7 * kSecond;  // before
    for (Nanos at = 100 * kMs; at <= 30 * kSecond; at += 100 * kMs) {
      slept += 30 * kMs * percent / 100;
      stragglers.late(1, 30 * kMs, kBegun + at, slept);
      slow |= stragglers.judge(1, kBegun + at, slept).has_value();
    }
    INFO("it has slept " << percent << " % of what it cost");
    CHECK(slow == (percent < 50));
  }
}

TEST_CASE("what a rank slept earlier does not excuse it", "[stragglers]") {
  Stragglers stragglers(2, kBegun);
  Nanos slept = 0, at = 0;
  for (; at <= 100 * kSecond; at += 100 * kMs) {  // both wait for each other
    slept += 30 * kMs;
    stragglers.late(1, 30 * kMs, kBegun + at, slept);
  }
  CHECK_FALSE(stragglers.judge(1, kBegun + at, slept));
  for (; at <= 111 * kSecond; at += 100 * kMs) stragglers.late(1, 30 * kMs, kBegun + at, slept);
  CHECK(stragglers.judge(1, kBegun + at, slept));
}

TEST_CASE("a pause of the program does not hide a straggler for long", "[stragglers]") {
  Stragglers stragglers(2, kBegun);
  stragglers.late(1, 20 * kMs, kBegun + kSecond);
  const auto at = slow_at(&stragglers, 1, 20 * kMs, 40 * kMs, 1000 * kSecond, 1010 * kSecond);
  REQUIRE(at);
  CHECK(*at < 1004 * kSecond);
}

TEST_CASE("the totals name who was waited for longest first", "[stragglers]") {
  Stragglers stragglers(3, kBegun);
  stragglers.late(0, 2 * kMs, kBegun + 10 * kMs);
  CHECK(stragglers.worst().rank == 0);
  stragglers.late(2, 5 * kMs, kBegun + 20 * kMs);
  stragglers.late(2, 5 * kMs, kBegun + 30 * kMs);
  const auto totals = stragglers.totals();
  REQUIRE(totals.size() == 2);
  CHECK((totals[0].rank == 2 && totals[0].count == 2 && totals[0].seconds == Approx(0.010)));
  CHECK(totals[1].rank == 0);
  CHECK(stragglers.worst() == totals[0]);
}

// ---- what ranks see of each other ----

// Ranks of a job whose clock the test drives; their threads are asleep since it began.
class Ranks {
 public:
  explicit Ranks(Rank size) : Ranks(size, size) {}
  // per_host: so many share a host's memory; 0: nobody has any.
  Ranks(Rank size, Rank per_host) : disks_(static_cast<size_t>(size)) {
    for (Rank rank = 0; rank < size; ++rank) {
      paces_.push_back(std::make_unique<host::Pace>());
      paces_.back()->slept = 0;
      paces_.back()->named = 0;
      paces_.back()->data = 0;
    }
    for (Rank rank = 0; rank < size; ++rank) {
      LateRanks::Around around;
      around.rank = rank;
      for (Rank other = 0; other < size; ++other) {
        const bool shared = per_host > 0 && other / per_host == rank / per_host;
        around.paces.push_back(shared ? paces_[static_cast<size_t>(other)].get() : nullptr);
      }
      around.disk = [this](Rank one) { return disks_[static_cast<size_t>(one)]; };
      around.blocked = &blocked_;
      around.now = [this] { return now_; };
      around.name = [this, rank](const Stragglers::Finding& finding) {
        named.push_back({rank, finding.rank});
        findings.push_back(finding);
      };
      around.worst = [](const wire::Waited&) {};
      around.late = [](Rank, int64_t) {};
      late_.emplace_back(std::move(around));
    }
  }
  void sleep() { asleep_.emplace(&blocked_); }
  LateRanks& of(Rank rank) { return late_[static_cast<size_t>(rank)]; }
  Nanos now() const { return now_; }
  void pass(Nanos time) { now_ += time; }
  Nanos slept(Rank rank) const { return paces_[static_cast<size_t>(rank)]->slept; }

  std::vector<std::pair<Rank, Rank>> named;  // by whom, who
  std::vector<Stragglers::Finding> findings;
  void wait_for_data(Rank rank, Nanos time) { paces_[static_cast<size_t>(rank)]->data += time; }
  void use_disk(Rank rank, Nanos blocked, int64_t bytes) {
    disks_[static_cast<size_t>(rank)].blocked += blocked;
    disks_[static_cast<size_t>(rank)].bytes += bytes;
  }

 private:
  // Behind the real one, which says since when threads sleep.
  Nanos now_ = std::chrono::steady_clock::now().time_since_epoch().count() + 3600 * kSecond;
  BlockedClock blocked_;
  std::optional<BlockedClock::Blocked> asleep_;
  std::vector<std::unique_ptr<host::Pace>> paces_;
  std::vector<engine::DiskUse> disks_;
  std::deque<LateRanks> late_;
};

// `waiting` sees `straggler`, who comes `late` later, in steps of 50 ms for that long.
void run_steps(Ranks* ranks, LateRanks::Group* waiting, Rank straggler, Nanos late, Nanos length) {
  for (const Nanos end = ranks->now() + length; ranks->now() < end;) {
    waiting->missing(straggler);
    ranks->pass(late);
    waiting->complete();
    ranks->pass(50 * kMs - late);
  }
}

TEST_CASE("what comes late while nobody sleeps costs nothing", "[stragglers]") {
  Ranks ranks(2);
  LateRanks::Group all(&ranks.of(0), {0, 1}, 0);
  all.missing(1);
  ranks.pass(5 * kMs);
  all.complete();
  all.decided(1, ranks.now() + 10 * kMs, ranks.now() + 90 * kMs);
  CHECK(ranks.of(0).totals().empty());
  ranks.sleep();
  all.missing(1);
  ranks.pass(100 * kMs);
  all.complete();
  REQUIRE(ranks.of(0).totals().size() == 1);
  CHECK(ranks.of(0).totals()[0].rank == 1);
}

TEST_CASE("a root that is last itself is late for as long as the others have been there",
          "[stragglers]") {
  Ranks ranks(2);
  LateRanks::Group all(&ranks.of(0), {0, 1}, 0);
  all.decided(0, 10 * kMs, 30 * kMs);
  all.decided(0, 12 * kMs, 31 * kMs);  // beside it: only the last millisecond is new
  REQUIRE(ranks.of(0).totals().size() == 1);
  CHECK(ranks.of(0).totals()[0].seconds == Approx(0.021));
}

TEST_CASE("no moment counts twice, in whichever process sets a rank waits", "[stragglers]") {
  Ranks ranks(3);
  LateRanks::Group all(&ranks.of(0), {0, 1, 2}, 0);
  LateRanks::Group some(&ranks.of(0), {0, 2}, 0);
  ranks.sleep();
  all.missing(1);
  some.missing(1);
  ranks.pass(20 * kMs);
  all.complete();
  ranks.pass(5 * kMs);
  some.complete();
  const auto totals = ranks.of(0).totals();
  REQUIRE(totals.size() == 2);
  CHECK((totals[1].rank == 2 && totals[1].seconds == Approx(0.005)));
}

TEST_CASE("a rank publishes how long it has slept until others came", "[stragglers]") {
  Ranks ranks(2);
  LateRanks::Group all(&ranks.of(1), {0, 1}, 1);
  ranks.sleep();
  run_steps(&ranks, &all, 0, 20 * kMs, 500 * kMs);
  CHECK(ranks.slept(0) == 0);
  CHECK(ranks.slept(1) == 200 * kMs);
}

TEST_CASE("in a step plan the root speaks of the others, and rank 1 of the root", "[stragglers]") {
  for (const Rank speaker : {0, 1, 2}) {
    for (const Rank straggler : {0, 1, 2}) {
      if (speaker == straggler) continue;
      Ranks ranks(3);
      LateRanks::Group all(&ranks.of(speaker), {0, 1, 2}, speaker);
      ranks.sleep();
      run_steps(&ranks, &all, straggler, 20 * kMs, 15 * kSecond);
      INFO("speaker " << speaker << ", straggler " << straggler);
      const bool speaks = (straggler != 0 && speaker == 0) || (straggler == 0 && speaker == 1);
      CHECK(ranks.named.size() == (speaks ? 1 : 0));
    }
  }
}

TEST_CASE("of a slow rank it is told how much it waits for data", "[stragglers]") {
  for (const int percent : {0, 60}) {
    Ranks ranks(2);
    LateRanks::Group all(&ranks.of(0), {0, 1}, 0);
    ranks.sleep();
    ranks.wait_for_data(1, 1000 * kSecond);  // before all this
    run_steps(&ranks, &all, 1, 1, 40 * kSecond);
    for (int i = 0; i < 400 && ranks.named.empty(); ++i) {
      ranks.wait_for_data(1, 50 * kMs * percent / 100);
      run_steps(&ranks, &all, 1, 30 * kMs, 50 * kMs);
    }
    INFO(percent);
    REQUIRE(ranks.findings.size() == 1);
    if (percent == 0) CHECK(ranks.findings[0].data == 0);
    if (percent == 60) CHECK(ranks.findings[0].data > 0.05);
  }
}

TEST_CASE("of a slow rank it is told what it has to do with disks, and who says so",
          "[stragglers]") {
  Ranks ranks(3);
  LateRanks::Group all(&ranks.of(1), {0, 1, 2}, 1);
  ranks.sleep();
  ranks.use_disk(0, 1000 * kSecond, 1'000'000'000'000);  // as it started
  for (int step = 0; step < 600 && ranks.named.empty(); ++step) {
    run_steps(&ranks, &all, 0, 30 * kMs, 50 * kMs);
    ranks.use_disk(0, 20 * kMs, 5'000'000);
    ranks.use_disk(1, 0, 50'000);
    ranks.use_disk(2, 40 * kMs, 9'000'000);
  }
  REQUIRE(ranks.findings.size() == 1);
  CHECK(ranks.findings[0].disk == Approx(0.4).epsilon(0.02));
  CHECK(ranks.findings[0].disk_bytes == Approx(100e6).epsilon(0.02));
  CHECK(ranks.findings[0].own_disk_bytes == Approx(1e6).epsilon(0.02));
}

TEST_CASE("what a rank did long before it became slow explains nothing", "[stragglers]") {
  Ranks ranks(2);
  LateRanks::Group all(&ranks.of(0), {0, 1}, 0);
  ranks.sleep();
  run_steps(&ranks, &all, 1, kMs, 30 * kSecond);
  ranks.use_disk(1, 900 * kSecond, 1'000'000'000'000);
  ranks.pass(1000 * kSecond);
  run_steps(&ranks, &all, 1, 30 * kMs, 20 * kSecond);
  REQUIRE(ranks.findings.size() == 1);
  CHECK((ranks.findings[0].disk == 0 && ranks.findings[0].disk_bytes == 0));
}

TEST_CASE("a rank that is a fifth slower for half a minute is named, with what balancing gives",
          "[stragglers]") {
  Ranks ranks(4);
  LateRanks::Group all(&ranks.of(0), {0, 1, 2, 3}, 0);
  ranks.sleep();
  const Nanos begin = ranks.now();
  while (ranks.now() < begin + 30 * kSecond) {  // 50 ms of work, rank 2 takes 60
    all.missing(2);
    ranks.pass(10 * kMs);
    all.complete();
    ranks.pass(50 * kMs);
  }
  CHECK(ranks.named == std::vector<std::pair<Rank, Rank>>{{0, 2}});
  REQUIRE(ranks.findings.size() == 1);
  const std::string text = engine::slow_rank_text("rank 2", ranks.findings[0], 4);
  INFO(text);
  CHECK(text.starts_with("rank 2 is slow: of the last 10 s the others waited 1."));
  // Of 60 ms the others wait 10. Ten seconds begin anywhere in a bucket of a second.
  const double share = ranks.findings[0].share;
  CHECK((share > 0.149 && share < 0.168));
  const double saved = 100 * engine::saved_by_balancing(share, 4);
  CHECK((saved > 11 && saved < 14));
  CHECK(text.find(fmt::format(
            "hvd.balance would make steps about {:.0f} % shorter (docs/data.md#slow-ranks)",
            saved)) != std::string::npos);
}

TEST_CASE("in a step plan over hosts each host's first rank speaks of its own", "[stragglers]") {
  for (const Rank speaker : {3, 4, 5}) {
    for (const Rank straggler : {3, 4, 5}) {
      if (speaker == straggler) continue;
      Ranks ranks(6, 3);
      LateRanks::Group all(&ranks.of(speaker), {0, 1, 2, 3, 4, 5}, speaker);
      ranks.sleep();
      run_steps(&ranks, &all, straggler, 20 * kMs, 15 * kSecond);
      INFO("speaker " << speaker << ", straggler " << straggler);
      const bool speaks = (straggler != 3 && speaker == 3) || (straggler == 3 && speaker == 4);
      CHECK(ranks.named.size() == (speaks ? 1 : 0));
    }
  }
}

TEST_CASE("two ranks that wait for each other are not named, one that is waited for is",
          "[stragglers]") {
  for (const bool one_direction : {true, false}) {
    Ranks ranks(2);
    LateRanks::Group of0(&ranks.of(0), {0, 1}, 0), of1(&ranks.of(1), {0, 1}, 1);
    ranks.sleep();
    for (int step = 0; step < 300; ++step) {
      run_steps(&ranks, &of0, 1, 20 * kMs, 50 * kMs);
      if (!one_direction) run_steps(&ranks, &of1, 0, 20 * kMs, 50 * kMs);
    }
    if (one_direction) CHECK(ranks.named == std::vector<std::pair<Rank, Rank>>{{0, 1}});
    if (!one_direction) CHECK(ranks.named.empty());
  }
}

TEST_CASE("a rank is named once in a job, whichever process sets and ranks see it",
          "[stragglers]") {
  Ranks ranks(3);
  LateRanks::Group all(&ranks.of(0), {0, 1, 2}, 0);
  LateRanks::Group some(&ranks.of(1), {1, 2}, 0);
  ranks.sleep();
  for (int round = 0; round < 5; ++round) {
    run_steps(&ranks, &all, 2, 20 * kMs, 12 * kSecond);
    run_steps(&ranks, &some, 1, 20 * kMs, 12 * kSecond);
  }
  CHECK(ranks.named == std::vector<std::pair<Rank, Rank>>{{0, 2}});
  run_steps(&ranks, &all, 1, 20 * kMs, 30 * kSecond);
  CHECK(ranks.named == std::vector<std::pair<Rank, Rank>>{{0, 2}, {0, 1}});
}

TEST_CASE("between hosts the root's own lateness says who waits for whom", "[stragglers]") {
  for (const bool root_is_late_too : {false, true}) {
    Ranks ranks(2, 0);
    LateRanks::Group all(&ranks.of(0), {0, 1}, 0);
    ranks.sleep();
    for (int step = 0; step < 300; ++step) {
      all.decided(1, ranks.now(), ranks.now() + 20 * kMs);
      ranks.pass(50 * kMs);
      if (root_is_late_too) all.decided(0, ranks.now(), ranks.now() + 20 * kMs);
      ranks.pass(50 * kMs);
    }
    CHECK(ranks.named.size() == (root_is_late_too ? 0 : 1));
  }
}

TEST_CASE("members of a process set are known by their ranks in the job", "[stragglers]") {
  Ranks ranks(6);
  LateRanks::Group odd(&ranks.of(1), {1, 3, 5}, 0);
  odd.decided(0, ranks.now() + 10 * kMs, ranks.now() + 30 * kMs);
  ranks.pass(40 * kMs);
  ranks.sleep();
  odd.missing(2);
  ranks.pass(10 * kMs);
  odd.complete();
  const auto totals = ranks.of(1).totals();
  REQUIRE(totals.size() == 2);
  CHECK((totals[0].rank == 1 && totals[1].rank == 5));
}

TEST_CASE("nobody sleeps unless a thread does", "[stragglers]") {
  BlockedClock blocked;
  CHECK(blocked.since() == 0);
  {
    const BlockedClock::Blocked one(&blocked);
    const auto since = blocked.since();
    CHECK(since > 0);
    const BlockedClock::Blocked two(&blocked);
    CHECK(blocked.since() == since);
    const BlockedClock::Blocked nobody(nullptr);
  }
  CHECK(blocked.since() == 0);
}

TEST_CASE("a wait in slices is one, between them too", "[stragglers]") {
  BlockedClock blocked;
  Nanos begun = 0;
  for (int slice = 0; slice < 5; ++slice) {
    BlockedClock::Blocked one(&blocked);
    if (slice == 0) begun = blocked.since();
    CHECK(blocked.since() == begun);
    one.slice_ends();
  }
  CHECK(blocked.since() == begun);  // as seen by the thread itself, which helps now
  { const BlockedClock::Blocked last(&blocked); }
  CHECK(blocked.since() == 0);
  const BlockedClock::Blocked another(&blocked);
  CHECK(blocked.since() > begun);
}

TEST_CASE("whoever does not wait again after a slice computes", "[stragglers]") {
  BlockedClock blocked;
  Nanos begun = 0;
  {
    BlockedClock::Blocked slice(&blocked);
    begun = blocked.since();
    slice.slice_ends();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(blocked.since() == 0);
  const BlockedClock::Blocked another(&blocked);
  CHECK(blocked.since() > begun);
}

}  // namespace
}  // namespace rueda::testing

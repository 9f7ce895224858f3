// Stats: what is counted into the page, and what is made of it.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <thread>

#include "collectives/host/monotonic.h"
#include "runtime/engine/blocked_clock.h"
#include "runtime/observe/stats/stats.h"
#include "runtime/observe/stats/summary.h"

namespace rueda::testing {
namespace {

using stats::Buckets;
using stats::Histogram;

struct Counted {
  std::unique_ptr<stats::Page> page = std::make_unique<stats::Page>();
  stats::Stats stats{page.get(), "shm+tcp"};
  stats::Summary now(const stats::Numbers& since = {}) const {
    return stats::summarize(stats::read(*page), since, 1, 2, host::monotonic_ns());
  }
};

TEST_CASE("a bucket has the durations from its beginning to that of the next", "[stats]") {
  for (size_t bucket = 0; bucket + 1 < Buckets::kCount; ++bucket) {
    const int64_t from = Buckets::begin(bucket), to = Buckets::begin(bucket + 1);
    INFO(bucket);
    CHECK(Buckets::of(from) == bucket);
    CHECK(Buckets::of(to - 1) == bucket);
    CHECK(Buckets::of(to) == bucket + 1);
    CHECK(static_cast<double>(to) <= 1.25 * static_cast<double>(from));
  }
  for (const int64_t tiny : {int64_t{-5}, int64_t{0}, int64_t{1}, int64_t{1023}})
    CHECK(Buckets::of(tiny) == 0);
  CHECK(Buckets::of(INT64_MAX) == Buckets::kCount - 1);
}

TEST_CASE("quantiles are those of the durations, to an eighth", "[stats]") {
  Histogram<int64_t> histogram;
  CHECK(stats::quantile(histogram, 0.95) == 0);
  for (int64_t ms = 1; ms <= 100; ++ms) ++histogram.buckets[Buckets::of(ms * 1'000'000)];
  for (const double share : {0.1, 0.5, 0.9, 0.95, 1.0}) {
    INFO(share);
    CHECK(stats::quantile(histogram, share) == Approx(share * 0.1).epsilon(0.125));
  }
  CHECK(stats::count_of(histogram) == 100);
}

TEST_CASE("operations, bytes and batches are counted by kind", "[stats]") {
  Counted counted;
  const auto begun = counted.stats.batch_begun();
  counted.stats.batch_ended(CollectiveKind::kAllreduce, begun, 3, 300, true);
  counted.stats.batch_ended(CollectiveKind::kAlltoall, counted.stats.batch_begun(), 1, 50, false);
  counted.stats.message_ended(CollectiveKind::kSend, 7);
  const stats::Numbers then = stats::read(*counted.page);
  auto all = counted.now();
  CHECK(all.operations == 5);
  CHECK(all.bytes == 357);
  CHECK(all.allreduce_operations == 3);
  CHECK(all.allreduce_bytes == 300);
  CHECK(all.alltoall_bytes == 50);
  CHECK(all.send_operations == 1);
  CHECK(all.batches == 2);
  CHECK(all.planned_share == 0.5);
  counted.stats.message_ended(CollectiveKind::kRecv, 9);
  all = counted.now(then);  // since then
  CHECK(all.operations == 1);
  CHECK(all.recv_bytes == 9);
  CHECK(all.batches == 0);
  CHECK(all.planned_share == 0);
}

TEST_CASE("what passes while nobody waits is overlapped", "[stats]") {
  constexpr auto kMoment = std::chrono::milliseconds(20);
  Counted counted;
  const auto begun = counted.stats.batch_begun();
  std::this_thread::sleep_for(kMoment);
  SECTION("nobody waits") {}
  SECTION("a thread waits for half of it, and still does") {
    counted.page->waiting_since = host::monotonic_ns();
    std::this_thread::sleep_for(kMoment);
  }
  const bool waits = counted.page->waiting_since != 0;
  counted.stats.batch_ended(CollectiveKind::kAllreduce, begun, 1, 4, false);
  const stats::Numbers at_end = stats::read(*counted.page);
  CHECK(at_end.busy_ns >= 20'000'000);
  CHECK(at_end.collective.nanoseconds >= 20'000'000);
  if (!waits) {
    CHECK(at_end.waited_busy_ns == 0);
    CHECK(counted.now().overlapped_share == 1);
  } else {
    CHECK(at_end.waited_busy_ns >= 20'000'000);
    CHECK(at_end.busy_ns - at_end.waited_busy_ns >= 20'000'000);
    CHECK(counted.now().waiting_seconds >= 0.02);
  }
  std::this_thread::sleep_for(kMoment);  // nothing is under way
  const auto next = counted.stats.batch_begun();
  CHECK(stats::read(*counted.page).busy_ns == at_end.busy_ns);
  counted.stats.batch_dropped();
  (void)next;
}

TEST_CASE("steps are those that are told, else rounds of a plan", "[stats]") {
  Counted counted;
  for (int i = 0; i < 3; ++i) counted.stats.round_begins();
  CHECK(counted.now().steps == 3);
  CHECK(stats::count_of(stats::read(*counted.page).step) == 2);
  counted.stats.step_begins();
  counted.stats.round_begins();
  CHECK(counted.now().steps == 4);
}

TEST_CASE("lateness is by rank, and of more than there is room for together", "[stats]") {
  Counted counted;
  const stats::Numbers before = stats::read(*counted.page);
  for (Rank rank = 0; rank < 100; ++rank) counted.stats.late(rank, 1'000'000'000);
  counted.stats.late(5, 500'000'000);
  const auto late = stats::late_ranks(stats::read(*counted.page), before);
  REQUIRE(late.size() == stats::kLateRanks + 1);
  CHECK(late[5].rank == 5);
  CHECK(late[5].seconds == Approx(1.5));
  CHECK(late.back().rank == -1);
  CHECK(late.back().seconds == Approx(100 - stats::kLateRanks));
  CHECK(counted.now().late_ranks_seconds == Approx(100.5));
}

TEST_CASE("waiting for data counts once, also while it lasts", "[stats]") {
  Counted counted;
  counted.stats.data_wait_ends();  // without a beginning
  CHECK(counted.now().data_wait_seconds == 0);
  counted.stats.data_wait_begins();
  counted.stats.data_wait_begins();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(counted.now().data_wait_seconds >= 0.005);
  counted.stats.data_wait_ends();
  const double waited = counted.now().data_wait_seconds;
  CHECK(waited >= 0.005);
  CHECK(counted.now().data_wait_seconds == waited);
}

TEST_CASE("another epoch of the same process goes on counting", "[stats]") {
  Counted counted;
  counted.stats.message_ended(CollectiveKind::kSend, 7);
  counted.page->waiting_since = 1;  // its threads are gone
  const stats::Stats next(counted.page.get(), "tcp");
  const auto all = counted.now();
  CHECK(all.send_bytes == 7);
  CHECK(all.waiting_seconds == 0);
}

// For scripts/metrics_cost.py.
TEST_CASE("what counting takes", "[.][stats]") {
  constexpr int kTimes = 1'000'000;
  const auto processor_time = [] {  // seconds of this thread
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const auto nanoseconds = [&](const auto& once) {
    const auto begun = processor_time();
    for (int i = 0; i < kTimes; ++i) once();
    return (processor_time() - begun) * 1e9 / kTimes;
  };
  Counted counted;
  engine::BlockedClock clock;
  clock.show(&counted.page->waiting_since, &counted.page->waiting_ns);
  const double batch = nanoseconds([&] {
    counted.stats.batch_ended(CollectiveKind::kAllreduce, counted.stats.batch_begun(), 3, 300,
                              true);
  });
  const double wait = nanoseconds([&] { const engine::BlockedClock::Blocked waits(&clock); });
  std::printf("a batch %.0f ns, a wait %.0f ns\n", batch, wait);
  CHECK(counted.now().operations == 3 * kTimes);
}

}  // namespace
}  // namespace rueda::testing

#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>
#include <vector>

#include "collectives/transport/baton.h"
#include "collectives/transport/doorbell.h"
#include "collectives/transport/wait_policy.h"

namespace rueda::transport {
namespace {

using std::chrono::microseconds;

TEST_CASE("nobody spins where ranks have to share cores", "[waiting]") {
  CHECK(WaitPolicy::for_costs(2, 2, microseconds(25)).spin == microseconds(50));
  CHECK(WaitPolicy::for_costs(3, 2, microseconds(25)).spin.count() == 0);
  CHECK(WaitPolicy::for_costs(3, 2, microseconds(25)).yield.count() > 0);
  // A measurement disturbed by a busy machine does not make anybody spin for long.
  CHECK(WaitPolicy::for_costs(2, 2, std::chrono::seconds(1)).spin <= microseconds(100));
  const WaitPolicy measured = WaitPolicy::measure(1);
  CHECK(measured.spin > microseconds(1));
  CHECK(usable_cores() >= 1);
}

TEST_CASE("a wait ends in sleep, and progress begins it anew", "[waiting]") {
  WaitPolicy policy;
  policy.spin = microseconds(20);
  policy.yield = microseconds(20);
  Waiting waiting(policy);
  int looks = 0;
  while (waiting.next()) ++looks;
  CHECK(looks > 0);
  CHECK_FALSE(waiting.next());
  waiting.restart();
  CHECK(waiting.next());
  policy.spin = microseconds(0);
  Waiting yields(policy);
  CHECK(yields.next());
  while (yields.next()) {
  }
  CHECK_FALSE(yields.next());
}

TEST_CASE("one thread at a time has the baton, and who waits for it gets it", "[baton]") {
  const int rounds = std::getenv("RUEDA_TEST_SHORT") != nullptr ? 2'000 : 50'000;
  Baton baton;
  int64_t inside = 0;  // guarded by the baton
  int64_t total = 0;
  std::atomic<bool> overlapped{false};
  const auto work = [&] {
    if (++inside != 1) overlapped = true;
    ++total;
    --inside;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < rounds; ++round) {
        baton.lock();
        work();
        baton.unlock();
      }
    });
  }
  std::atomic<int64_t> tried{0};
  threads.emplace_back([&] {
    for (int round = 0; round < rounds; ++round) {
      if (!baton.try_lock()) continue;
      work();
      ++tried;
      baton.unlock();
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(overlapped);
  CHECK(total == 2 * rounds + tried);
}

TEST_CASE("a holder sees that somebody waits for the baton", "[baton]") {
  Baton baton;
  REQUIRE(baton.try_lock());
  CHECK_FALSE(baton.contended());
  CHECK_FALSE(baton.try_lock());
  std::atomic<bool> got{false};
  std::atomic<bool> alone{false};
  std::thread other([&] {
    baton.lock();
    got = true;
    alone = !baton.contended();  // who has waited and has the baton now does not wait
    baton.unlock();
  });
  while (!baton.contended()) std::this_thread::yield();
  CHECK_FALSE(got);
  baton.unlock();
  other.join();
  CHECK(got);
  CHECK(alone);
}

TEST_CASE("progress in a lane wakes only a rank that waits for it", "[doorbell]") {
  SleepWord word;
  SleepWord lane_word;
  auto bell = Doorbell::create(&word, &lane_word);
  REQUIRE(bell.ok());
  bell->arm();
  bell->lane_ringer().ring();
  CHECK(lane_word.asleep == 0);
  uint64_t count = 0;
  CHECK(read(bell->fd(), &count, sizeof(count)) < 0);  // nothing was written
  bell->arm_lane();
  bell->lane_ringer().ring();
  CHECK(read(bell->fd(), &count, sizeof(count)) == sizeof(count));
  bell->disarm();
  bell->lane_ringer().ring();
  bell->ringer().ring();
  CHECK(read(bell->fd(), &count, sizeof(count)) < 0);
}

}  // namespace
}  // namespace rueda::transport

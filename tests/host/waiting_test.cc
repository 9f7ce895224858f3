#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>
#include <vector>

#include "collectives/host/doorbell.h"
#include "collectives/host/progress_lock.h"
#include "collectives/host/wait_policy.h"

namespace rueda::host {
namespace {

using std::chrono::microseconds;

TEST_CASE("nobody spins where ranks have to share cores", "[waiting]") {
  CHECK(host::WaitPolicy::for_costs(2, 2, microseconds(25)).spin == microseconds(50));
  CHECK(host::WaitPolicy::for_costs(3, 2, microseconds(25)).spin.count() == 0);
  CHECK(host::WaitPolicy::for_costs(3, 2, microseconds(25)).yield.count() > 0);
  // A measurement disturbed by a busy machine does not make anybody spin for long.
  CHECK(host::WaitPolicy::for_costs(2, 2, std::chrono::seconds(1)).spin <= microseconds(100));
  const host::WaitPolicy measured = host::WaitPolicy::measure(1);
  CHECK(measured.spin > microseconds(1));
  CHECK(usable_cores() >= 1);
}

TEST_CASE("ranks that are bound to a core each have a core each", "[waiting]") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) cpus.push_back(cpu);
  }
  if (cpus.size() < 2 || usable_cores() < 2) return;
  const auto bind = [](pid_t pid, int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(pid, sizeof(one), &one);
  };
  const pid_t other = fork();
  if (other == 0) {
    for (;;) ::pause();
  }
  REQUIRE(other > 0);
  const bool bound = bind(other, cpus[1]) == 0 && bind(0, cpus[0]) == 0;
  const int alone = usable_cores(), together = usable_cores({getpid(), other});
  bind(other, cpus[0]);
  const int shared = usable_cores({getpid(), other});
  sched_setaffinity(0, sizeof(before), &before);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  CHECK(bound);
  CHECK(alone == 1);
  CHECK(together == 2);
  CHECK(shared == 1);
  CHECK(usable_cores({0, -1, other}) == usable_cores());  // gone
}

TEST_CASE("a wait ends in sleep, and progress begins it anew", "[waiting]") {
  host::WaitPolicy policy;
  policy.spin = microseconds(20);
  policy.yield = microseconds(20);
  host::Waiting waiting(policy);
  int looks = 0;
  while (waiting.next()) ++looks;
  CHECK(looks > 0);
  CHECK_FALSE(waiting.next());
  waiting.restart();
  CHECK(waiting.next());
  policy.spin = microseconds(0);
  host::Waiting yields(policy);
  CHECK(yields.next());
  while (yields.next()) {
  }
  CHECK_FALSE(yields.next());
}

TEST_CASE("one thread at a time holds the progress lock, and who waits for it gets it",
          "[progress_lock]") {
  const int rounds = std::getenv("RUEDA_TEST_SHORT") != nullptr ? 2'000 : 50'000;
  host::ProgressLock progress_lock;
  int64_t inside = 0;  // guarded by the progress lock
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
        progress_lock.lock();
        work();
        progress_lock.unlock();
      }
    });
  }
  std::atomic<int64_t> tried{0};
  threads.emplace_back([&] {
    for (int round = 0; round < rounds; ++round) {
      if (!progress_lock.try_lock()) continue;
      work();
      ++tried;
      progress_lock.unlock();
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(overlapped);
  CHECK(total == 2 * rounds + tried);
}

TEST_CASE("a holder sees that somebody waits for the progress lock", "[progress_lock]") {
  host::ProgressLock progress_lock;
  REQUIRE(progress_lock.try_lock());
  CHECK_FALSE(progress_lock.contended());
  CHECK_FALSE(progress_lock.try_lock());
  std::atomic<bool> got{false};
  std::atomic<bool> alone{false};
  std::thread other([&] {
    progress_lock.lock();
    got = true;
    alone =
        !progress_lock.contended();  // who has waited and holds the progress lock now does not wait
    progress_lock.unlock();
  });
  while (!progress_lock.contended()) std::this_thread::yield();
  CHECK_FALSE(got);
  progress_lock.unlock();
  other.join();
  CHECK(got);
  CHECK(alone);
}

TEST_CASE("progress in a channel wakes only a rank that waits for it", "[doorbell]") {
  host::SleepWord word;
  host::SleepWord channel_word;
  auto bell = host::Doorbell::create(&word, &channel_word);
  REQUIRE(bell.ok());
  bell->arm();
  bell->channel_ringer().ring();
  CHECK(channel_word.asleep == 0);
  uint64_t count = 0;
  CHECK(read(bell->fd(), &count, sizeof(count)) < 0);  // nothing was written
  bell->arm_channel();
  bell->channel_ringer().ring();
  CHECK(read(bell->fd(), &count, sizeof(count)) == sizeof(count));
  bell->disarm();
  bell->channel_ringer().ring();
  bell->ringer().ring();
  CHECK(read(bell->fd(), &count, sizeof(count)) < 0);
}

}  // namespace
}  // namespace rueda::host

#include "collectives/host/wait_policy.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "collectives/host/cgroup.h"

namespace rueda::host {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr uint32_t kLooksPerClock = 64;  // the clock is read once for this many looks
constexpr nanoseconds kLeastWakeUp = microseconds(15);
constexpr nanoseconds kMostWakeUp = microseconds(50);

// Marks what a process may use, 0 being this one.
void add_cores(pid_t pid, std::vector<bool>* cores) {
  // The set grows until the kernel's mask fits.
  for (size_t cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) return;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool known = sched_getaffinity(pid, bytes, set) == 0;
    const bool too_small = !known && errno == EINVAL;
    if (known && cores->size() < cpus) cores->resize(cpus);
    for (size_t cpu = 0; known && cpu < cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) (*cores)[cpu] = true;
    }
    CPU_FREE(set);
    if (!too_small) return;
  }
}

void futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation | FUTEX_PRIVATE_FLAG, value,
          nullptr, nullptr, 0);
}

// Median time from a wake-up call to the sleeper's first instruction, by a ping-pong of sleepers.
nanoseconds measure_wake_up() {
  constexpr int kRounds = 15;
  std::atomic<uint32_t> word{0};
  const auto wait_for = [&word](uint32_t value) {
    for (uint32_t seen = word.load(); seen != value; seen = word.load())
      futex(&word, FUTEX_WAIT, seen);
  };
  std::thread other([&] {
    for (uint32_t round = 0; round < kRounds; ++round) {
      wait_for(2 * round + 1);
      word.store(2 * round + 2);
      futex(&word, FUTEX_WAKE, 1);
    }
  });
  std::vector<nanoseconds> times;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    word.store(2 * round + 1);
    futex(&word, FUTEX_WAKE, 1);
    wait_for(2 * round + 2);
    times.push_back((Clock::now() - begin) / 2);
  }
  other.join();
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

}  // namespace

int usable_cores() { return usable_cores({}); }

int usable_cores(const std::vector<int>& pids) {
  std::vector<bool> cores;
  add_cores(0, &cores);
  for (const int pid : pids) {
    if (pid > 0) add_cores(pid, &cores);
  }
  const auto by_affinity = static_cast<int>(std::count(cores.begin(), cores.end(), true));
  const double limit = std::ceil(std::min(cgroup_core_limit(read_small_file).value_or(1e6), 1e6));
  return std::max(1, std::min(by_affinity, static_cast<int>(limit)));
}

WaitPolicy WaitPolicy::for_costs(Rank local_ranks, int cores, nanoseconds wake_up) {
  const nanoseconds budget = 2 * std::clamp(wake_up, kLeastWakeUp, kMostWakeUp);
  WaitPolicy policy;
  policy.spin = local_ranks <= cores ? budget : nanoseconds(0);
  policy.yield = budget;
  policy.background_yields = cores >= 2 * local_ranks ? 64 : 2;
  return policy;
}

WaitPolicy WaitPolicy::measure(Rank local_ranks, const std::vector<int>& pids) {
  return for_costs(local_ranks, usable_cores(pids), measure_wake_up());
}

bool Waiting::next() {
  if (spins_) {
    pause();
    if (++looks_ % kLooksPerClock != 0) return true;
    const auto now = Clock::now();
    if (looks_ == kLooksPerClock) began_ = now;
    spins_ = now - began_ < policy_.spin;
    if (!spins_) began_ = now;
    return true;
  }
  const auto now = Clock::now();
  if (began_ == Clock::time_point{}) began_ = now;
  if (now - began_ >= policy_.yield) return false;
  sched_yield();
  return true;
}

void Waiting::restart() {
  looks_ = 0;
  spins_ = policy_.spin.count() > 0;
  began_ = {};
}

}  // namespace rueda::host

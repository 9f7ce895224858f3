// WaitPolicy: how a thread waits for another rank before it goes to sleep: look, spin for a while,
// yield a few times.
//
// Waking a sleeper costs 20 to 30 us, a look costs nothing while the core is ours. So a thread that
// is blocked in the user's own wait looks again and again for about twice what a wake-up costs; but
// only where every local rank has a core of its own (affinity and cgroup limits counted), else it
// would keep the core from the very rank that it waits for, and yields instead.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "collectives/base/types.h"

namespace rueda::host {

// Cores this process may use: affinity, and the cgroup's CPU limit rounded up. At least 1.
int usable_cores();
// Cores these processes may use between them: a launcher may have bound each to its own. A process
// that cannot be asked counts as one that may use the same as this one, which always counts.
int usable_cores(const std::vector<int>& pids);

struct WaitPolicy {
  // A blocked user's thread.
  std::chrono::nanoseconds spin{0};   // pausing between looks
  std::chrono::nanoseconds yield{0};  // then yielding between looks
  // The background thread, which shares cores with the user's computation.
  int background_yields = 0;

  // Measures what waking a thread costs here (about a millisecond). `pids`: of the local ranks.
  static WaitPolicy measure(Rank local_ranks, const std::vector<int>& pids = {});
  static WaitPolicy for_costs(Rank local_ranks, int cores, std::chrono::nanoseconds wake_up);
};

// Tells the core that this is a spin.
inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One wait. Call next() after each look in vain: false when it is time to sleep.
class Waiting {
 public:
  explicit Waiting(const WaitPolicy& policy) : policy_(policy) { restart(); }
  bool next();
  // Progress was made: the wait begins anew.
  void restart();

 private:
  const WaitPolicy& policy_;
  bool spins_ = false;
  uint32_t looks_ = 0;
  std::chrono::steady_clock::time_point began_{};  // of this phase
};

}  // namespace rueda::host

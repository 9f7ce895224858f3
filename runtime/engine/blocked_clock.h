// BlockedClock: since when a thread of the user's sleeps because it waits for a request. Says what
// waiting costs, without a clock on any path that does not sleep.
//
// Threads: any. Threads that go to sleep and wake in the same moment may blur each other's times.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rueda::engine {

class BlockedClock {
 public:
  // Nanoseconds of the monotonic clock; 0: nobody sleeps.
  int64_t since() const {
    return sleepers_.load(std::memory_order_relaxed) > 0 ? since_.load(std::memory_order_relaxed)
                                                         : 0;
  }

  // A thread sleeps as long as this lives. clock: may be null.
  class Sleep {
   public:
    explicit Sleep(BlockedClock* clock) : clock_(clock) {
      if (clock_ == nullptr) return;
      const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
      if (clock_->sleepers_.fetch_add(1, std::memory_order_relaxed) == 0)
        clock_->since_.store(now, std::memory_order_relaxed);
    }
    ~Sleep() {
      if (clock_ == nullptr) return;
      // Nobody may take this sleep's begin for that of the next one.
      if (clock_->sleepers_.load(std::memory_order_relaxed) == 1)
        clock_->since_.store(0, std::memory_order_relaxed);
      clock_->sleepers_.fetch_sub(1, std::memory_order_release);
    }
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;

   private:
    BlockedClock* clock_;
  };

 private:
  std::atomic<int> sleepers_{0};
  std::atomic<int64_t> since_{0};
};

}  // namespace rueda::engine

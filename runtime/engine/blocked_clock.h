// BlockedClock: since when a thread of the user's sleeps because it waits for a request, and how
// long threads have slept so far. Says what waiting costs, without a clock on any path that does
// not sleep.
//
// Threads: any. Threads that go to sleep and wake in the same moment may blur each other's times.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rueda::engine {

class BlockedClock {
 public:
  // Times are kept there from now on, where others read them too. Before anybody sleeps; borrowed.
  void show(std::atomic<int64_t>* since, std::atomic<int64_t>* total) {
    since_ = since;
    total_ = total;
  }
  // Nanoseconds of the monotonic clock; 0: nobody sleeps.
  int64_t since() const {
    return sleepers_.load(std::memory_order_relaxed) > 0 ? since_->load(std::memory_order_relaxed)
                                                         : 0;
  }

  // A thread sleeps as long as this lives. clock: may be null.
  class Sleep {
   public:
    explicit Sleep(BlockedClock* clock) : clock_(clock) {
      if (clock_ != nullptr && clock_->sleepers_.fetch_add(1, std::memory_order_relaxed) == 0)
        clock_->since_->store(clock_ns(), std::memory_order_relaxed);
    }
    ~Sleep() {
      if (clock_ == nullptr) return;
      // Nobody may take this sleep's begin for that of the next one.
      if (clock_->sleepers_.load(std::memory_order_relaxed) == 1) {
        const int64_t since = clock_->since_->exchange(0, std::memory_order_relaxed);
        if (since != 0) clock_->total_->fetch_add(clock_ns() - since, std::memory_order_release);
      }
      clock_->sleepers_.fetch_sub(1, std::memory_order_release);
    }
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;

   private:
    static int64_t clock_ns() {
      return std::chrono::steady_clock::now().time_since_epoch().count();
    }

    BlockedClock* clock_;
  };

 private:
  std::atomic<int> sleepers_{0};
  std::atomic<int64_t> own_since_{0}, own_total_{0};
  std::atomic<int64_t>* since_ = &own_since_;
  std::atomic<int64_t>* total_ = &own_total_;
};

}  // namespace rueda::engine

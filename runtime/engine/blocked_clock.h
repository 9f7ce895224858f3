// BlockedClock: since when a thread of the user's is blocked because it waits for a request, and
// how long threads have been so far. There is one of threads that sleep, so that no path that does
// not sleep reads a clock, and one of all that wait, asleep or doing the coordinator's work
// meanwhile.
//
// Threads: any. Threads that begin and end in the same moment may blur each other's times.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "collectives/host/monotonic.h"

namespace rueda::engine {

class BlockedClock {
 public:
  // Times are kept there from now on, where others read them too. Before anybody is blocked;
  // borrowed, but for what `keeps` keeps.
  void show(std::atomic<int64_t>* since, std::atomic<int64_t>* total,
            std::shared_ptr<void> keeps = nullptr) {
    since_ = since;
    total_ = total;
    keeps_ = std::move(keeps);
  }
  // Nanoseconds of the monotonic clock; 0: nobody is. A wait in slices, between which a thread
  // looks for signals or does the coordinator's work, is one.
  int64_t since() const {
    return threads_.load(std::memory_order_relaxed) > 0 || between_slices()
               ? whole_since_.load(std::memory_order_relaxed)
               : 0;
  }

  // A thread is blocked as long as this lives. clock: may be null.
  class Blocked {
   public:
    explicit Blocked(BlockedClock* clock) : clock_(clock) {
      if (clock_ == nullptr || clock_->threads_.load(std::memory_order_relaxed) > 0) {
        if (clock_ != nullptr) clock_->threads_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      const int64_t now = host::monotonic_ns();
      if (now - clock_->slice_until_.load(std::memory_order_relaxed) > kBetweenSlices)
        clock_->whole_since_.store(now, std::memory_order_relaxed);
      clock_->since_->store(now, std::memory_order_relaxed);
      clock_->threads_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Blocked() {
      if (clock_ == nullptr) return;
      // Nobody may take this one's begin for that of the next one.
      if (clock_->threads_.load(std::memory_order_relaxed) == 1) {
        const int64_t since = clock_->since_->exchange(0, std::memory_order_relaxed);
        const int64_t now = host::monotonic_ns();
        clock_->slice_until_.store(slice_ ? now : 0, std::memory_order_relaxed);
        if (since != 0) clock_->total_->fetch_add(now - since, std::memory_order_release);
      }
      clock_->threads_.fetch_sub(1, std::memory_order_release);
    }
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;

    // What it waits for has not ended: its thread may wait again at once.
    void slice_ends() { slice_ = true; }

   private:
    BlockedClock* clock_;
    bool slice_ = false;
  };

 private:
  // Of a wait. Longer than a thread helps before it sleeps, on a busy machine too.
  static constexpr int64_t kBetweenSlices = 5'000'000;

  // The clock is read only after a slice.
  bool between_slices() const {
    const int64_t until = slice_until_.load(std::memory_order_relaxed);
    return until != 0 && host::monotonic_ns() - until <= kBetweenSlices;
  }

  std::atomic<int> threads_{0};
  std::atomic<int64_t> own_since_{0}, own_total_{0};
  std::atomic<int64_t> whole_since_{0};
  std::atomic<int64_t> slice_until_{0};  // 0: the last wait ended with what it waited for
  std::atomic<int64_t>* since_ = &own_since_;
  std::atomic<int64_t>* total_ = &own_total_;
  std::shared_ptr<void> keeps_;
};

}  // namespace rueda::engine

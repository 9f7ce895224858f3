// ProgressLock: the right to drive a rank's coordinator. One thread has it at a time.
//
// The background thread asks with lock() and may wait; a user's thread only tries. A holder that is
// in no hurry to leave looks at contended() now and then and gives way.
// Source: U. Drepper, "Futexes Are Tricky", the mutex of three states.
#pragma once

#include <atomic>
#include <cstdint>

namespace rueda::host {

class ProgressLock {
 public:
  bool try_lock() {
    uint32_t expected = kFree;
    return word_.load(std::memory_order_seq_cst) == kFree &&
           word_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  void lock() {
    if (!try_lock()) lock_slowly();
  }
  void unlock() {
    // Sequentially consistent: who pushed work and failed to get the progress lock relies on the
    // holder to look once more after this.
    if (word_.exchange(kFree, std::memory_order_seq_cst) == kContended) wake();
  }
  // Does a thread wait in lock()?
  bool contended() const { return waiting_.load(std::memory_order_relaxed) != 0; }

 private:
  enum : uint32_t { kFree = 0, kHeld = 1, kContended = 2 };
  void lock_slowly();
  void wake();

  alignas(64) std::atomic<uint32_t> word_{kFree};
  // Threads in lock(). The word alone cannot tell: who had to wait leaves it at kContended when it
  // gets the progress lock, since others may be waiting too.
  std::atomic<uint32_t> waiting_{0};
};

}  // namespace rueda::host

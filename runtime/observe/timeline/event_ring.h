// EventRing: a bounded queue of events from many threads to one, without lock or allocation (after
// Vyukov's bounded queue). A full ring drops what comes and counts it.
//
// Each cell carries the number of the round in which it may be written next:
//
//   turn == n          free for the n-th event
//   turn == n + 1      holds the n-th event
//   turn == n + size   read, free for the next round
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/observe/timeline/event.h"

namespace rueda::timeline {

class EventRing {
 public:
  // capacity: a power of two.
  explicit EventRing(uint64_t capacity)
      : mask_(capacity - 1), cells_(std::make_unique<Cell[]>(capacity)) {
    for (uint64_t i = 0; i < capacity; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  // Any thread.
  void push(const Event& event) {
    uint64_t n = next_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[n & mask_];
      const auto ahead = static_cast<int64_t>(cell.turn.load(std::memory_order_acquire) - n);
      if (ahead < 0) {
        lost_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      if (ahead > 0) {
        n = next_.load(std::memory_order_relaxed);
      } else if (next_.compare_exchange_weak(n, n + 1, std::memory_order_relaxed)) {
        cell.event = event;
        cell.turn.store(n + 1, std::memory_order_release);
        return;
      }
    }
  }

  // The reader. False: empty.
  bool pop(Event* event) {
    Cell& cell = cells_[read_ & mask_];
    if (cell.turn.load(std::memory_order_acquire) != read_ + 1) return false;
    *event = cell.event;
    cell.turn.store(read_ + mask_ + 1, std::memory_order_release);
    ++read_;
    return true;
  }

  // Dropped since the last call.
  uint64_t take_lost() { return lost_.exchange(0, std::memory_order_relaxed); }

 private:
  struct Cell {
    std::atomic<uint64_t> turn{0};
    Event event;
  };
  const uint64_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> lost_{0};
  alignas(64) uint64_t read_ = 0;
};

}  // namespace rueda::timeline

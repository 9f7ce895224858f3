// CycleDetector: sees that the same batches come again and again. Pure; the root's.
//
// Idea: for every period p keep how many batches in a row equalled the one p before them. The
// sequence has ended in c identical cycles of p batches when that run is at least (c - 1) * p long.
// The smallest such p is taken. Cost: one comparison per period and batch, no memory allocated.
//
//   batches   A B C A B C A B C          p = 3: run 6 after the third C: three cycles
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "runtime/plan/step_plan.h"

namespace rueda::plan {

class CycleDetector {
 public:
  using Batch = std::vector<CacheId>;  // in order
  static constexpr size_t kMaxPeriod = 512;

  static constexpr size_t kMaxKnown = 8 * kMaxPeriod;  // different batches remembered

  CycleDetector() : history_(kMaxPeriod), runs_(kMaxPeriod, 0) {}

  void add(const Batch& batch);
  // The last batches, oldest first, if they have come `cycles` (>= 2) times in a row just now.
  std::optional<std::vector<Batch>> cycle(uint64_t cycles) const;
  // Forgets the sequence.
  void clear();

 private:
  uint32_t at(size_t back) const { return history_[(count_ - 1 - back) % kMaxPeriod]; }

  std::map<Batch, uint32_t> numbers_;
  std::vector<const Batch*> batches_;  // by number; keys of numbers_
  std::vector<uint32_t> history_;      // ring of numbers
  std::vector<uint64_t> runs_;         // [p - 1]: batches in a row that equal the one p before
  size_t count_ = 0;
};

}  // namespace rueda::plan

// Published: the counters of a rank where any thread may read them while one counts.
//
// Counting is adding to plain fields, by the thread that owns them; nobody looks there. Whoever
// asks has them copied here first (Coordinator::count), so that a step pays nothing for it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "runtime/observe/counters/counters.h"

namespace rueda::counters {

class Published {
 public:
  // One thread at a time.
  void publish(const Values& values) {
    for (size_t i = 0; i < values_.size(); ++i)
      values_[i].store(values.*kValues[i].field, std::memory_order_relaxed);
  }
  // Any thread. While somebody publishes, some are of before and some of after.
  Values read() const {
    Values values;
    for (size_t i = 0; i < values_.size(); ++i)
      values.*kValues[i].field = values_[i].load(std::memory_order_relaxed);
    return values;
  }

 private:
  std::array<std::atomic<int64_t>, std::size(kValues)> values_{};
};

}  // namespace rueda::counters

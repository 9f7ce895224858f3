// Overlaps: which of many intervals meet a given one, without looking at all of them. Plans of
// thousands of packed sequences are made from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rueda::attention {

// Positions first to last, both included.
struct Interval {
  int64_t first = 0, last = -1;
};

class Overlaps {
 public:
  // `interval(i)` of each i < count.
  template <typename Fn>
  Overlaps(size_t count, Fn interval) {
    for (size_t i = 0; i < count; ++i) {
      const Interval one = interval(i);
      if (one.first <= one.last) entries_.push_back({one, i, one.last});
    }
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return a.interval.first != b.interval.first ? a.interval.first < b.interval.first
                                                  : a.index < b.index;
    });
    for (size_t i = 1; i < entries_.size(); ++i)
      entries_[i].furthest = std::max(entries_[i].furthest, entries_[i - 1].furthest);
  }

  // Calls found(i) for those that meet `with`, in no order.
  template <typename Fn>
  void each(Interval with, Fn found) const {
    auto at = std::upper_bound(
        entries_.begin(), entries_.end(), with.last,
        [](int64_t last, const Entry& entry) { return last < entry.interval.first; });
    while (at != entries_.begin()) {
      --at;
      if (at->furthest < with.first) return;  // nor does any before it reach so far
      if (at->interval.last >= with.first) found(at->index);
    }
  }

 private:
  struct Entry {
    Interval interval;
    size_t index;
    int64_t furthest;  // last of this and all before it
  };
  std::vector<Entry> entries_;  // by first
};

}  // namespace rueda::attention

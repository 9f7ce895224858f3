// FreeRanges: free parts of an address space; best fit, neighbours joined.
//
// Best fit keeps large ranges whole (Knuth, The Art of Computer Programming 1, section 2.5); taking
// and adding cost O(log ranges). Pure bookkeeping: it never touches the memory, so that what others
// may write there cannot mislead it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace rueda::host {

class FreeRanges {
 public:
  struct Range {
    size_t offset = 0;
    size_t bytes = 0;
  };
  // A range that is not in here yet, nor overlaps one.
  void add(Range range);
  // The start of the smallest range that holds `bytes`, the lowest among equals; the rest stays.
  std::optional<size_t> take(size_t bytes);
  std::optional<Range> take_largest();
  size_t total() const { return total_; }
  size_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void erase(std::map<size_t, size_t>::iterator it);

  std::map<size_t, size_t> by_offset_;           // offset: bytes
  std::set<std::pair<size_t, size_t>> by_size_;  // (bytes, offset)
  size_t total_ = 0;
};

}  // namespace rueda::host

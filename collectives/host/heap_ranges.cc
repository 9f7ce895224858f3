#include "collectives/host/heap_ranges.h"

#include <iterator>

namespace rueda::host {

void FreeRanges::erase(std::map<size_t, size_t>::iterator it) {
  total_ -= it->second;
  by_size_.erase({it->second, it->first});
  by_offset_.erase(it);
}

void FreeRanges::add(Range range) {
  if (range.bytes == 0) return;
  auto next = by_offset_.lower_bound(range.offset);
  if (next != by_offset_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == range.offset) {
      range = {before->first, before->second + range.bytes};
      erase(before);
    }
  }
  if (next != by_offset_.end() && range.offset + range.bytes == next->first) {
    range.bytes += next->second;
    erase(next);
  }
  by_offset_.emplace(range.offset, range.bytes);
  by_size_.emplace(range.bytes, range.offset);
  total_ += range.bytes;
}

std::optional<size_t> FreeRanges::take(size_t bytes) {
  const auto found = by_size_.lower_bound({bytes, 0});
  if (found == by_size_.end()) return std::nullopt;
  const Range whole{found->second, found->first};
  erase(by_offset_.find(whole.offset));
  add({whole.offset + bytes, whole.bytes - bytes});
  return whole.offset;
}

std::optional<FreeRanges::Range> FreeRanges::take_largest() {
  if (by_size_.empty()) return std::nullopt;
  const auto [bytes, offset] = *by_size_.rbegin();
  erase(by_offset_.find(offset));
  return Range{offset, bytes};
}

}  // namespace rueda::host

#include "collectives/transport/expired_tags.h"

#include <algorithm>

namespace rueda::transport {

void ExpiredTags::add(Tag first, Tag last) {
  // Those that meet the new range or are its neighbours become one with it.
  const auto begin = std::partition_point(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    return range.last < first && range.last + 1 < first;
  });
  const auto end = std::partition_point(begin, ranges_.end(), [&](const Range& range) {
    return range.first <= last || range.first - 1 == last;
  });
  if (begin == end) {
    ranges_.insert(begin, {first, last});
    return;
  }
  begin->first = std::min(begin->first, first);
  begin->last = std::max(std::prev(end)->last, last);
  ranges_.erase(std::next(begin), end);
}

bool ExpiredTags::find(Tag tag) const {
  const auto range = std::partition_point(ranges_.begin(), ranges_.end(),
                                          [&](const Range& r) { return r.last < tag; });
  return range != ranges_.end() && range->first <= tag;
}

}  // namespace rueda::transport

// ExpiredTags: the tags whose messages are dead.
//
// Disjoint ranges in order, neighbours joined, so that what expires in a row or from the same begin
// on stays one range. Asking costs a comparison where nothing has expired, else the logarithm of
// the number of ranges. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/transport/transport.h"

namespace rueda::transport {

class ExpiredTags {
 public:
  // first <= last; both are dead.
  void add(Tag first, Tag last);
  bool contains(Tag tag) const { return !ranges_.empty() && find(tag); }
  size_t ranges() const { return ranges_.size(); }

 private:
  struct Range {
    Tag first;
    Tag last;
  };
  bool find(Tag tag) const;
  std::vector<Range> ranges_;
};

}  // namespace rueda::transport

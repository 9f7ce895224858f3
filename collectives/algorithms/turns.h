// Turns: which call may start operations in a channel now. Calls are numbered by their start; one
// passes when it has no more operations to start, possibly before its turn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rueda::algorithms {

class Turns {
 public:
  bool is_at(uint64_t call) const { return next_ == call; }
  // Allocates only when more calls are under way than ever before.
  void pass(uint64_t call) {
    const uint64_t ahead = call - next_;
    if (ahead >= passed_.size()) grow(ahead + 1);
    passed_[call % passed_.size()] = true;
    while (passed_[next_ % passed_.size()]) passed_[next_++ % passed_.size()] = false;
  }
  void reset() {
    next_ = 0;
    std::fill(passed_.begin(), passed_.end(), false);
  }

 private:
  void grow(uint64_t room) {
    size_t size = passed_.size();
    while (size < room) size *= 2;
    std::vector<bool> more(size, false);
    for (uint64_t call = next_; call < next_ + passed_.size(); ++call)
      more[call % size] = passed_[call % passed_.size()];
    passed_ = std::move(more);
  }

  uint64_t next_ = 0;
  std::vector<bool> passed_ =
      std::vector<bool>(64, false);  // of [next_, next_ + size), by call mod size
};

}  // namespace rueda::algorithms

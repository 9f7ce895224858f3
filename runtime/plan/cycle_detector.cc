#include "runtime/plan/cycle_detector.h"

#include <algorithm>

namespace rueda::plan {

void CycleDetector::add(const Batch& batch) {
  if (batches_.size() >= kMaxKnown) clear();  // nothing repeats
  const auto [it, is_new] = numbers_.try_emplace(batch, static_cast<uint32_t>(batches_.size()));
  if (is_new) batches_.push_back(&it->first);
  const uint32_t number = it->second;
  const size_t known = std::min(count_, kMaxPeriod);
  for (size_t p = 1; p <= known; ++p) {
    uint64_t& run = runs_[p - 1];
    run = at(p - 1) == number ? run + 1 : 0;
  }
  history_[count_++ % kMaxPeriod] = number;
}

std::optional<std::vector<CycleDetector::Batch>> CycleDetector::cycle(uint64_t cycles) const {
  const size_t known = std::min(count_, kMaxPeriod);
  for (size_t p = 1; p <= known; ++p) {
    if (runs_[p - 1] < (cycles - 1) * p) continue;
    std::vector<Batch> found;
    for (size_t back = p; back > 0; --back) found.push_back(*batches_[at(back - 1)]);
    return found;
  }
  return std::nullopt;
}

void CycleDetector::clear() {
  numbers_.clear();
  batches_.clear();
  std::fill(runs_.begin(), runs_.end(), 0);
  count_ = 0;
}

}  // namespace rueda::plan

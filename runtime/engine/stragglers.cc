#include "runtime/engine/stragglers.h"

#include <algorithm>

#include "proto/limits.h"

namespace rueda::engine {

Stragglers::Stragglers(Rank size, Nanos begun) : begun_(begun), ranks_(static_cast<size_t>(size)) {}

Stragglers::Bucket* Stragglers::bucket_of(Count* count, Nanos now) {
  const int64_t second = now / kBucket;
  Bucket* const bucket = &count->buckets[static_cast<size_t>(second) % kBuckets];
  if (bucket->second != second) *bucket = {second, 0, 0, {}};
  return bucket;
}

bool Stragglers::is_recent(const Bucket& bucket, Nanos now) {
  const int64_t second = now / kBucket;
  return bucket.second >= 0 && bucket.second <= second &&
         bucket.second > second - static_cast<int64_t>(kBuckets);
}

void Stragglers::late(Rank rank, Nanos cost, Nanos now, std::optional<Nanos> slept) {
  Count& count = ranks_[static_cast<size_t>(rank)];
  count.total += cost;
  ++count.times;
  Bucket* const bucket = bucket_of(&count, now);
  if (bucket->times == 0) bucket->slept = slept;
  bucket->cost += cost;
  ++bucket->times;
  const double seconds = static_cast<double>(count.total) * 1e-9;
  if (seconds > worst_.seconds) worst_ = {static_cast<int32_t>(rank), seconds, count.times};
}

std::optional<Stragglers::Finding> Stragglers::judge(Rank rank, Nanos now,
                                                     std::optional<Nanos> slept) const {
  if (now - begun_ < kWindow) return std::nullopt;
  Finding finding;
  finding.rank = rank;
  Nanos weight = 0;
  const Bucket* first = nullptr;
  for (const Bucket& bucket : ranks_[static_cast<size_t>(rank)].buckets) {
    if (!is_recent(bucket, now)) continue;
    weight += bucket.weight();
    finding.cost += bucket.cost;
    finding.times += bucket.times;
    if (first == nullptr || bucket.second < first->second) first = &bucket;
  }
  if (static_cast<double>(weight) < kShare * kWindow) return std::nullopt;
  if (slept && first->slept &&
      static_cast<double>(*slept - *first->slept) > kSlept * static_cast<double>(finding.cost)) {
    return std::nullopt;
  }
  Nanos all = 0;
  for (const Count& count : ranks_) {
    for (const Bucket& bucket : count.buckets) {
      if (is_recent(bucket, now)) all += bucket.weight();
    }
  }
  if (static_cast<double>(weight) < kOwnPart * static_cast<double>(all)) return std::nullopt;
  finding.share = std::min(1.0, static_cast<double>(finding.cost) / kWindow);
  return finding;
}

std::vector<wire::Waited> Stragglers::totals() const {
  std::vector<wire::Waited> result;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Count& count = ranks_[rank];
    if (count.times == 0) continue;
    result.push_back(
        {static_cast<int32_t>(rank), static_cast<double>(count.total) * 1e-9, count.times});
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  if (result.size() > wire::kMaxWaited) result.resize(wire::kMaxWaited);
  return result;
}

}  // namespace rueda::engine

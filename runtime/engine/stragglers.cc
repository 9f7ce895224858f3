#include "runtime/engine/stragglers.h"

#include <algorithm>

#include "proto/limits.h"

namespace rueda::engine {

std::optional<Stragglers::Finding> Stragglers::late(Rank rank, Nanos cost, Nanos now, bool again) {
  Count& count = ranks_[static_cast<size_t>(rank)];
  count.total += cost;
  ++count.times;
  if (cost < kWorthIt) return std::nullopt;
  Incident& last = window_[(incidents_ - 1) % kWindow];
  if (again && incidents_ > 0 && last.rank == rank) {
    last.cost += cost;
    last.end = now;
  } else {
    window_[incidents_++ % kWindow] = {rank, cost, now};
  }
  if (now < count.quiet_until || count.total < kInAll) return std::nullopt;

  const Incident& first = window_[incidents_ > kWindow ? incidents_ % kWindow : 0];
  Finding finding{rank, 0, 0, 0, now - (first.end - first.cost)};
  Nanos sum = 0, all = 0;
  for (size_t i = 0; i < std::min<uint64_t>(incidents_, kWindow); ++i) {
    const Incident& incident = window_[i];
    all += incident.cost;
    if (incident.rank != rank) continue;
    ++finding.incidents;
    sum += incident.cost;
  }
  finding.mean = sum / static_cast<Nanos>(finding.incidents);
  finding.share =
      static_cast<double>(sum) / static_cast<double>(std::max<Nanos>(finding.length, 1));
  if (finding.incidents < kIncidents || finding.share < kShare) return std::nullopt;
  if (static_cast<double>(sum) < kOwn * static_cast<double>(all)) return std::nullopt;
  count.quiet_until = now + count.pause;
  count.pause *= 2;
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

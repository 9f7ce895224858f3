#include "launcher/membership/slow_ranks.h"

#include <algorithm>

namespace rueda::launcher::membership {
namespace {

constexpr int kQuarters = 4;
constexpr double kLeastBusy = 0.001;  // nobody is infinitely fast

SlowRanks::Time::duration to_duration(double seconds) {
  return std::chrono::duration_cast<SlowRanks::Time::duration>(
      std::chrono::duration<double>(seconds));
}

}  // namespace

void SlowRanks::begin_epoch(const std::vector<MemberId>& members) {
  members_.clear();
  for (const MemberId member : members) members_[member];
}

void SlowRanks::take(MemberId member, Time heard, int64_t at_ns, int64_t waited_ns) {
  const auto known = members_.find(member);
  if (known == members_.end()) return;
  Samples& samples = known->second;
  if (!samples.empty() && static_cast<double>(at_ns) <= samples.back().at) return;
  samples.push_back({heard, static_cast<double>(at_ns), static_cast<double>(waited_ns)});
  const Time oldest = heard - 2 * to_duration(policy_.seconds);
  while (samples.size() > 2 && samples[1].heard < oldest) samples.pop_front();
}

// As it was at this time, which lies among the samples' times.
SlowRanks::Sample SlowRanks::between(const Samples& samples, Time time) {
  const auto after =
      std::lower_bound(samples.begin(), samples.end(), time,
                       [](const Sample& sample, Time wanted) { return sample.heard < wanted; });
  if (after == samples.begin() || after->heard == time) return *after;
  const Sample& a = *std::prev(after);
  const double part = std::chrono::duration<double>(time - a.heard) /
                      std::chrono::duration<double>(after->heard - a.heard);
  return {time, a.at + part * (after->at - a.at), a.waited + part * (after->waited - a.waited)};
}

std::optional<SlowRanks::Finding> SlowRanks::look() const {
  if (members_.size() < 2) return std::nullopt;
  // Until when all have told.
  std::optional<Time> to;
  for (const auto& [member, samples] : members_) {
    if (samples.empty()) return std::nullopt;
    if (!to || samples.back().heard < *to) to = samples.back().heard;
  }
  const auto quarter = to_duration(policy_.seconds / kQuarters);
  const Time from = *to - kQuarters * quarter;
  for (const auto& [member, samples] : members_) {
    if (samples.front().heard > from) return std::nullopt;
  }
  std::optional<Finding> finding;
  for (int i = 0; i < kQuarters; ++i) {
    const auto here = look_at(from + i * quarter, from + (i + 1) * quarter);
    if (!here || (finding && here->member != finding->member)) return std::nullopt;
    if (!finding || here->factor < finding->factor) finding = here;
  }
  return finding;
}

std::optional<SlowRanks::Finding> SlowRanks::look_at(Time from, Time to) const {
  std::vector<std::pair<double, MemberId>> busy;
  for (const auto& [member, samples] : members_) {
    const Sample a = between(samples, from), b = between(samples, to);
    if (b.at <= a.at) return std::nullopt;
    busy.emplace_back(std::clamp(1 - (b.waited - a.waited) / (b.at - a.at), kLeastBusy, 1.0),
                      member);
  }
  std::sort(busy.begin(), busy.end());
  const auto [most, slowest] = busy.back();
  busy.pop_back();
  const double median = busy[busy.size() / 2].first;
  if (most - median < kShare || most < policy_.factor * median) return std::nullopt;
  return Finding{slowest, most / median};
}

}  // namespace rueda::launcher::membership

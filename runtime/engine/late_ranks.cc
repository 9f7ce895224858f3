#include "runtime/engine/late_ranks.h"

#include <algorithm>
#include <utility>

namespace rueda::engine {

LateRanks::LateRanks(Around around)
    : around_(std::move(around)),
      stragglers_(static_cast<Rank>(around_.paces.size()), around_.now()),
      named_(around_.paces.size()),
      looks_(around_.paces.size()) {}

LateRanks::Group::Group(LateRanks* late, std::vector<Rank> ranks, Rank place)
    : late_(late), ranks_(std::move(ranks)), place_(place) {}

// The clock is read where a thread sleeps already; else its falling asleep is the later begin.
void LateRanks::Group::missing(Rank place) {
  missing_ = place;
  since_ = late_->around_.blocked->since() == 0 ? 0 : late_->around_.now();
}

void LateRanks::Group::complete() {
  const Nanos asleep = late_->around_.blocked->since();
  if (asleep == 0) return;
  const Nanos now = late_->around_.now();
  const Nanos from = std::max({since_, asleep, std::exchange(late_->seen_until_, now)});
  if (host::Pace* const own = late_->pace_of(late_->around_.rank); own != nullptr && now > from)
    own->slept.fetch_add(now - from, std::memory_order_relaxed);
  late_->late(ranks_[static_cast<size_t>(missing_)], now - from, now, speaks_of(missing_));
}

// The first of the host's ranks, but for who is late itself.
bool LateRanks::Group::speaks_of(Rank place) const {
  for (Rank other = 0; other < place_; ++other) {
    if (other != place && late_->pace_of(ranks_[static_cast<size_t>(other)]) != nullptr)
      return false;
  }
  return true;
}

void LateRanks::Group::decided(Rank last, Nanos before, Nanos now) {
  Nanos from = std::max(before, late_->seen_until_);
  late_->seen_until_ = std::max(late_->seen_until_, now);
  if (last != place_) {
    const Nanos asleep = late_->around_.blocked->since();
    if (asleep == 0) return;
    from = std::max(from, asleep);
  }
  late_->late(ranks_[static_cast<size_t>(last)], now - from, now, true);
}

LateRanks::Look LateRanks::look(Rank rank, Nanos now) const {
  Look look;
  look.at = now;
  look.data = pace_of(rank)->data.load(std::memory_order_relaxed);
  look.disk = around_.disk(rank).value_or(DiskUse{});
  look.own_disk = around_.disk(around_.rank).value_or(DiskUse{});
  return look;
}

void LateRanks::look_at(Rank rank, Nanos now) {
  if (pace_of(rank) == nullptr) return;
  Looks& looks = looks_[static_cast<size_t>(rank)];
  const Nanos passed = now - looks.newer.at;
  if (passed < Stragglers::kWindow) return;
  const Look fresh = look(rank, now);
  looks.older = passed > 2 * Stragglers::kWindow ? fresh : looks.newer;
  looks.newer = fresh;
}

void LateRanks::explain(Stragglers::Finding* finding, Nanos now) {
  if (pace_of(finding->rank) == nullptr) return;
  const Look& before = looks_[static_cast<size_t>(finding->rank)].older;
  const auto passed = static_cast<double>(now - before.at);
  if (passed <= 0) return;
  const Look at = look(finding->rank, now);
  const auto in_time = [passed](int64_t from, int64_t to) {
    return std::max(0.0, static_cast<double>(to - from) / passed);
  };
  finding->data = std::min(1.0, in_time(before.data, at.data));
  finding->disk = std::min(1.0, in_time(before.disk.blocked, at.disk.blocked));
  finding->disk_bytes = 1e9 * in_time(before.disk.bytes, at.disk.bytes);
  finding->own_disk_bytes = 1e9 * in_time(before.own_disk.bytes, at.own_disk.bytes);
}

void LateRanks::late(Rank rank, Nanos cost, Nanos now, bool speaks) {
  if (cost <= 0) return;
  host::Pace* const pace = pace_of(rank);
  std::optional<Nanos> slept;
  if (pace != nullptr) slept = pace->slept.load(std::memory_order_relaxed);
  stragglers_.late(rank, cost, now, slept);
  around_.worst(stragglers_.worst());
  around_.late(rank, cost);
  if (!speaks || named_[static_cast<size_t>(rank)]) return;
  look_at(rank, now);
  auto finding = stragglers_.judge(rank, now, slept);
  if (!finding) return;
  explain(&*finding, now);
  named_[static_cast<size_t>(rank)] = true;
  if (pace == nullptr || pace->named.exchange(1, std::memory_order_relaxed) == 0)
    around_.name(*finding);
}

}  // namespace rueda::engine

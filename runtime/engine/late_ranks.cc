#include "runtime/engine/late_ranks.h"

#include <algorithm>
#include <utility>

namespace rueda::engine {

LateRanks::LateRanks(Around around)
    : around_(std::move(around)),
      stragglers_(static_cast<Rank>(around_.paces.size()), around_.now()),
      named_(around_.paces.size()),
      data_(around_.paces.size()) {
  for (Looks& looks : data_) looks.older.at = looks.newer.at = around_.now();
}

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

void LateRanks::look_at_data(Rank rank, Nanos now) {
  const host::Pace* const pace = pace_of(rank);
  Looks& looks = data_[static_cast<size_t>(rank)];
  if (pace == nullptr || now - looks.newer.at < Stragglers::kWindow) return;
  looks.older = looks.newer;
  looks.newer = {now, pace->data.load(std::memory_order_relaxed)};
}

double LateRanks::data_share(Rank rank, Nanos now) {
  const host::Pace* const pace = pace_of(rank);
  const Data& before = data_[static_cast<size_t>(rank)].older;
  if (pace == nullptr || now <= before.at) return 0;
  const Nanos waited = pace->data.load(std::memory_order_relaxed) - before.waited;
  return std::clamp(static_cast<double>(waited) / static_cast<double>(now - before.at), 0.0, 1.0);
}

void LateRanks::late(Rank rank, Nanos cost, Nanos now, bool speaks) {
  if (cost <= 0) return;
  host::Pace* const pace = pace_of(rank);
  std::optional<Nanos> slept;
  if (pace != nullptr) slept = pace->slept.load(std::memory_order_relaxed);
  stragglers_.late(rank, cost, now, slept);
  around_.worst(stragglers_.worst());
  around_.late(rank, cost);
  look_at_data(rank, now);
  if (!speaks || named_[static_cast<size_t>(rank)]) return;
  auto finding = stragglers_.judge(rank, now, slept);
  if (!finding) return;
  finding->data = data_share(rank, now);
  named_[static_cast<size_t>(rank)] = true;
  if (pace == nullptr || pace->named.exchange(1, std::memory_order_relaxed) == 0)
    around_.name(*finding);
}

}  // namespace rueda::engine

#include "runtime/engine/late_ranks.h"

#include <algorithm>
#include <utility>

namespace rueda::engine {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

LateRanks::LateRanks(Rank size, const BlockedClock* blocked, Name name)
    : blocked_(blocked), name_(std::move(name)), stragglers_(size) {}

LateRanks::Group::Group(LateRanks* late, std::vector<Rank> ranks, Rank place)
    : late_(late), ranks_(std::move(ranks)), place_(place) {}

void LateRanks::Group::missing(Rank place, bool again) {
  missing_ = place;
  again_ = again;
  since_ = late_->blocked_->since() == 0 ? 0 : now_ns();
}

void LateRanks::Group::complete() {
  const Nanos asleep = late_->blocked_->since();
  if (asleep == 0) return;
  const Nanos now = now_ns();
  const Rank speaker = missing_ == 0 ? 1 : 0;
  late_->late(ranks_[static_cast<size_t>(missing_)], now - std::max(since_, asleep), now, again_,
              place_ == speaker);
}

void LateRanks::Group::decided(Rank last, Nanos before, Nanos now) {
  const bool again = before < late_->seen_until_;
  Nanos from = std::max(before, late_->seen_until_);
  late_->seen_until_ = std::max(late_->seen_until_, now);
  if (last != place_) {
    const Nanos asleep = late_->blocked_->since();
    if (asleep == 0) return;
    from = std::max(from, asleep);
  }
  late_->late(ranks_[static_cast<size_t>(last)], now - from, now, again, true);
}

void LateRanks::late(Rank rank, Nanos cost, Nanos now, bool again, bool speaks) {
  if (cost <= 0) return;
  const auto finding = stragglers_.late(rank, cost, now, again);
  if (finding && speaks) name_(*finding);
}

}  // namespace rueda::engine

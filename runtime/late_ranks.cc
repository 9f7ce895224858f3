#include "runtime/late_ranks.h"

#include <algorithm>
#include <utility>

namespace rueda::runtime {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

LateRanks::LateRanks(Rank rank, Rank size, const BlockedClock* blocked, Name name)
    : rank_(rank),
      blocked_(blocked),
      name_(std::move(name)),
      stragglers_(size),
      lanes_{Lane(this), Lane(this)} {}

void LateRanks::Lane::missing(Rank rank, bool again) {
  rank_ = rank;
  again_ = again;
  since_ = late_->blocked_->since() == 0 ? 0 : now_ns();
}

void LateRanks::Lane::complete() {
  const Nanos asleep = late_->blocked_->since();
  if (asleep == 0) return;
  const Nanos now = now_ns();
  const Rank speaker = rank_ == 0 ? 1 : 0;
  late_->late(rank_, now - std::max(since_, asleep), now, again_, late_->rank_ == speaker);
}

void LateRanks::decided(Rank last, Nanos before, Nanos now) {
  const bool again = before < seen_until_;
  Nanos from = std::max(before, seen_until_);
  seen_until_ = std::max(seen_until_, now);
  if (last != rank_) {
    const Nanos asleep = blocked_->since();
    if (asleep == 0) return;
    from = std::max(from, asleep);
  }
  late(last, now - from, now, again, true);
}

void LateRanks::late(Rank rank, Nanos cost, Nanos now, bool again, bool speaks) {
  if (cost <= 0) return;
  const auto finding = stragglers_.late(rank, cost, now, again);
  if (finding && speaks) name_(*finding);
}

}  // namespace rueda::runtime

// PlanKeeper: the root's side of step plans: when to freeze one, and which requests belong to it.
//
//   generation g:  freeze goes out --> each rank handles it (stamp 2g - 1) --> ... revoked ...
//                  --> each rank reports that it is back (stamp 2g); when all have, g is over
//
// A request for a planned id from a rank that has not handled the freeze yet is overlooked: that
// rank turns it into a submission to the plan when it does. From a rank that is back it counts.
//
// When: the batches have come in `needed` identical cycles. Three at first; each revocation doubles
// it (a program that deviates all the time shall not pay for plans all the time), a plan that
// lasted long resets it. Pure; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "collectives/base/types.h"
#include "proto/limits.h"
#include "proto/messages.h"
#include "runtime/plan/cycle_detector.h"

namespace rueda::plan {

class PlanKeeper {
 public:
  static constexpr uint64_t kCycles = 3;
  static constexpr uint64_t kMostCycles = 1024;
  static constexpr uint64_t kLasting = 8;  // times the cycles needed: the plan was worth it

  // All but what changes the group itself.
  static bool plannable(CollectiveKind kind) {
    switch (kind) {
      case CollectiveKind::kAllreduce:
      case CollectiveKind::kAllgather:
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kReducescatter:
      case CollectiveKind::kAlltoall:
      case CollectiveKind::kBarrier: return true;
      case CollectiveKind::kJoin:
      case CollectiveKind::kProcessSet:
      case CollectiveKind::kSend:
      case CollectiveKind::kRecv:
      case CollectiveKind::kReduce:
      case CollectiveKind::kGather:
      case CollectiveKind::kScatter: return false;
    }
    return false;
  }

  // most: after so many plans every step is negotiated.
  explicit PlanKeeper(Rank size, uint64_t most = wire::kMaxPlans)
      : most_(most), stamps_(static_cast<size_t>(size), 0) {}

  void enable() { enabled_ = true; }
  // A rank has left: nothing is frozen any more.
  void stop() { enabled_ = false; }
  bool in_force() const {
    return std::any_of(stamps_.begin(), stamps_.end(),
                       [&](uint64_t stamp) { return stamp < 2 * generation_; });
  }
  // False: no rank can be there.
  bool on_stamp(Rank rank, uint64_t stamp) {
    if (stamp > 2 * generation_ || stamp < stamps_[static_cast<size_t>(rank)]) return false;
    stamps_[static_cast<size_t>(rank)] = stamp;
    return true;
  }
  bool planned(CacheId id) const { return planned_.count(id) != 0; }
  enum class Place { kRoot, kPlan, kWrong };
  // Where a request for this id belongs that this rank has sent.
  Place place(Rank rank, CacheId id) const {
    const uint64_t stamp = stamps_[static_cast<size_t>(rank)];
    if (!planned(id) || stamp >= 2 * generation_) return Place::kRoot;
    return stamp + 1 == 2 * generation_ ? Place::kWrong : Place::kPlan;
  }

  // The rank knows of no plan that it is not back from.
  bool is_back(Rank rank) const { return stamps_[static_cast<size_t>(rank)] == 2 * generation_; }

  // A batch of this kind goes out; ids: empty when a member has none, or is not steady.
  void on_batch(CollectiveKind kind, const std::vector<CacheId>& ids) {
    if (plannable(kind) && !ids.empty() && enabled_ && !in_force()) detector_.add(ids);
  }
  // The batches that could be frozen now, after everything that has gone out.
  std::optional<std::vector<CycleDetector::Batch>> candidate() const {
    if (!enabled_ || in_force() || generation_ == most_) return std::nullopt;
    auto cycle = detector_.cycle(needed_);
    if (!cycle) return std::nullopt;
    size_t ids = 0;
    for (const auto& batch : *cycle) ids += batch.size();
    if (ids > wire::kMaxPlanIds) return std::nullopt;
    return cycle;
  }
  // They are a plan from now on.
  wire::StepPlan freeze(const std::vector<CycleDetector::Batch>& cycle) {
    wire::StepPlan plan;
    plan.generation = ++generation_;
    planned_.clear();
    for (const auto& batch : cycle) {
      plan.batches.push_back({batch, 0});
      planned_.insert(batch.begin(), batch.end());
    }
    detector_.clear();
    return plan;
  }
  // The root rank is back from the plan after so many cycles. at_will: nobody deviated.
  void on_end(uint64_t cycles, bool at_will) {
    if (at_will) return;
    needed_ = cycles >= kLasting * needed_ ? kCycles : std::min(kMostCycles, 2 * needed_);
  }
  uint64_t needed() const { return needed_; }

 private:
  const uint64_t most_;
  bool enabled_ = false;
  uint64_t generation_ = 0;              // of the last plan that was frozen
  std::vector<uint64_t> stamps_;         // by rank
  std::unordered_set<CacheId> planned_;  // in that plan
  uint64_t needed_ = kCycles;
  CycleDetector detector_;
};

}  // namespace rueda::plan

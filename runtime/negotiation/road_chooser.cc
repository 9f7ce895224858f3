#include "runtime/negotiation/road_chooser.h"

#include "collectives/base/log.h"

namespace rueda::negotiation {
namespace {

int64_t best(const std::vector<int64_t>& ns) {
  return *std::min_element(ns.begin() + RoadChooser::kWarmUps, ns.end());
}

}  // namespace

void RoadChooser::settle(Class* of, uint32_t road, std::chrono::seconds trust, Time now) {
  of->trust = trust;
  of->asked_before = true;
  of->settled = true;
  of->road = road;
  of->until = now + of->trust;
}

uint32_t RoadChooser::choose(CollectiveKind kind, int64_t bytes, Time now) {
  if (!has_choice(kind, bytes)) return without_choice(kind, bytes);
  Class& of = classes_[class_of(bytes)];
  if (of.settled && now >= of.until) {
    of.settled = false;
    of.sent = {};
    of.ns = {};
  }
  if (of.settled) return of.road;
  const uint32_t road = of.ns[kWindows].size() < kTries ? kWindows : kPull;
  // Sent again and again, and nobody says how long it took: such batches lie in place, where there
  // is no choice, or overlap each other, which windows do better.
  if (of.sent[road]++ == 2 * kTries) settle(&of, kWindows, kMostTrust, now);
  return of.settled ? of.road : road;
}

void RoadChooser::measured(CollectiveKind kind, int64_t bytes, uint32_t road, int64_t ns,
                           Time now) {
  if (!has_choice(kind, bytes) || road > kPull) return;
  Class& of = classes_[class_of(bytes)];
  if (of.settled) return;
  of.ns[road].push_back(ns);
  if (of.ns[kWindows].size() < kTries || of.ns[kPull].size() < kTries) return;
  const int64_t windows = best(of.ns[kWindows]);
  const int64_t pull = best(of.ns[kPull]);
  const uint32_t better = pull < windows ? kPull : kWindows;
  const bool same = of.asked_before && of.road == better;
  settle(&of, better, same ? std::min(kMostTrust, 2 * of.trust) : kTrust, now);
  RUEDA_INFO("coordinator", "allreduce of {} KB and more: {} (windows {:.1f} us, pull {:.1f} us)",
             (int64_t{1} << class_of(bytes)) >> 10, better == kPull ? "pull" : "windows",
             static_cast<double>(windows) / 1e3, static_cast<double>(pull) / 1e3);
}

uint32_t RoadChooser::settled_road(CollectiveKind kind, int64_t bytes) const {
  if (!has_choice(kind, bytes)) return without_choice(kind, bytes);
  const auto it = classes_.find(class_of(bytes));
  return it == classes_.end() ? kWindows : it->second.road;
}

bool RoadChooser::settled(CollectiveKind kind, int64_t bytes) const {
  if (!has_choice(kind, bytes)) return true;
  const auto it = classes_.find(class_of(bytes));
  return it != classes_.end() && it->second.settled;
}

bool RoadChooser::stale(CollectiveKind kind, int64_t bytes, Time now) const {
  if (!has_choice(kind, bytes)) return false;
  const auto it = classes_.find(class_of(bytes));
  return it != classes_.end() && it->second.settled && now >= it->second.until;
}

}  // namespace rueda::negotiation

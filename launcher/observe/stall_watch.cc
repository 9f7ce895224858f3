#include "launcher/observe/stall_watch.h"

#include <algorithm>

namespace rueda::launcher {
namespace {

constexpr size_t kMostStacks = 4;  // in one explanation
constexpr size_t kMostTold = 1024;
// The same wait is seen at slightly different times where the clocks of hosts are compared.
constexpr int64_t kSameWaitNs = 500'000'000;

}  // namespace

StallWatch::Due StallWatch::look(const std::vector<RankRecord>& ranks, int64_t now_ns) {
  Due due;
  if (seconds_ <= 0) return due;
  std::map<std::string, Told> told;
  // Who has ended waits no more: an elastic job may go without it until others come.
  const auto runs = [&](Rank rank) {
    const auto record = std::ranges::find(ranks, rank, &RankRecord::rank);
    return record->life == RankRecord::Life::kRunning || record->life == RankRecord::Life::kSilent;
  };
  for (const Wait& wait : find_waits(ranks)) {
    if (std::ranges::none_of(wait.in, runs)) continue;
    const double age = wait.seconds(now_ns);
    if (age < seconds_ || wait.operation.kind == CollectiveKind::kJoin) continue;
    std::string key = std::to_string(wait.operation.process_set) + "/" + wait.operation.name;
    if (wait.operation.peer >= 0)  // many messages have one name
      key += "/" + std::to_string(wait.in.front()) + "/" + std::to_string(wait.operation.peer);
    const auto known = told_.find(key);
    const auto near = [](int64_t a, int64_t b) {
      return std::max(flight::elapsed_ns(a, b), flight::elapsed_ns(b, a)) < kSameWaitNs;
    };
    const bool same = known != told_.end() && near(known->second.since_ns, wait.since_ns);
    Told now = same ? known->second : Told{wait.since_ns, 0};
    if (age >= now.next) {
      due.any = true;
      due.anew = due.anew || now.next == 0;
      now.next = 2 * age;
    }
    if (told.size() < kMostTold) told.emplace(key, now);
    due.waiting.insert(wait.in.begin(), wait.in.end());
    for (const Rank rank : wait.out) {
      if (due.absent.size() < kMostStacks) due.absent.insert(rank);
    }
  }
  told_ = std::move(told);
  if (due.absent.empty()) {  // all ranks are in it: whoever is stuck is one of them
    for (const Rank rank : due.waiting) {
      if (due.absent.size() < kMostStacks) due.absent.insert(rank);
    }
  }
  return due;
}

}  // namespace rueda::launcher

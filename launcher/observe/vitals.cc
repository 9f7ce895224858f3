#include "launcher/observe/vitals.h"

#include <algorithm>

#include "collectives/base/number_text.h"
#include "launcher/job/exit_report.h"
#include "runtime/observe/stats/summary.h"

namespace rueda::launcher {
double RankVitals::waiting_seconds() const {
  if (!flight) return 0;
  const stats::Numbers& at = flight->stats;
  return 1e-9 * static_cast<double>(stats::waited_until(now_ns, at.waiting_ns, at.waiting_since));
}

double RankVitals::data_wait_seconds() const {
  if (!flight) return 0;
  const stats::Numbers& at = flight->stats;
  return 1e-9 * static_cast<double>(stats::waited_until(now_ns, at.data_ns, at.data_since));
}

uint64_t RankVitals::pending() const {
  if (!flight) return 0;
  return flight->submitted - flight->ended + flight->planned - flight->planned_ended;
}

Rank JobVitals::size() const {
  Rank most = 0;
  for (const RankVitals& rank : ranks) {
    if (rank.flight && rank.life != RankRecord::Life::kDead)
      most = std::max(most, rank.flight->size);
  }
  return most;
}

double JobVitals::late_seconds(Rank rank) const {
  double sum = 0;
  for (const RankVitals& one : ranks) {
    if (!one.flight) continue;
    for (const stats::Late& late : stats::late_ranks(one.flight->stats, {})) {
      if (late.rank == rank) sum += late.seconds;
    }
  }
  return sum;
}

std::string health_of(const JobVitals& job) {
  std::vector<Rank> lost, stalled;
  for (const RankVitals& rank : job.ranks) {
    if (rank.life == RankRecord::Life::kDead) lost.push_back(rank.rank);
    if (rank.stalled > 0) stalled.push_back(rank.rank);
  }
  if (!lost.empty()) {
    const auto first = std::find_if(job.ranks.begin(), job.ranks.end(),
                                    [&](const auto& rank) { return rank.rank == lost.front(); });
    return name_ranks(lost) + (lost.size() == 1 ? " is lost: " : " are lost: ") + first->state;
  }
  if (stalled.empty()) return "";
  return "stalled: " + name_ranks(stalled) + (stalled.size() == 1 ? " waits" : " wait") +
         " for others (rueda status says for whom)";
}

}  // namespace rueda::launcher

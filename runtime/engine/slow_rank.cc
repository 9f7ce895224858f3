#include "runtime/engine/slow_rank.h"

#include <fmt/format.h>

#include <algorithm>

namespace rueda::engine {
namespace {

// A disk of 100 MB/s, a slow one, takes a tenth of the time for that: what makes a rank slow.
constexpr double kManyBytes = Stragglers::kShare * 100e6;  // each second
constexpr double kMoreBytes = 2;                           // times those of the rank that asks

// A part of the time that goes far to explain what the rank cost.
bool explains(double share, const Stragglers::Finding& finding) {
  return share >= std::max(Stragglers::kShare / 2, finding.share / 4);
}

std::string cause_of(const Stragglers::Finding& finding, Rank size) {
  if (explains(finding.data, finding))
    return fmt::format(
        "The cause is its data: it waited for that for {:.0f} % of its time. More workers, a "
        "larger prefetch or another disk help (docs/data.md)",
        100 * finding.data);
  if (explains(finding.disk, finding))
    return fmt::format(
        "The cause is a disk: that blocked it for {:.0f} % of its time. Write less often, or in "
        "the background (docs/checkpoints.md)",
        100 * finding.disk);
  std::string text;
  if (finding.disk_bytes >= kManyBytes &&
      finding.disk_bytes >= kMoreBytes * finding.own_disk_bytes) {
    text = fmt::format(
        "It alone reads or writes files: {:.0f} MB each second, where another rank had {:.0f}. "
        "What is written less often, or in the background, costs less (docs/checkpoints.md)",
        finding.disk_bytes * 1e-6, finding.own_disk_bytes * 1e-6);
  } else {
    text =
        "Look there for a busier host, more ranks than cores, slower data loading, or work that it "
        "alone does (checkpoints, evaluation)";
    if (finding.rank == 0) text += "; rank 0 often writes files, logs and lists folders for all";
  }
  return text + fmt::format(
                    ". If it just computes slower, hvd.balance would make steps about {:.0f} % "
                    "shorter (docs/data.md#slow-ranks)",
                    100 * saved_by_balancing(finding.share, size));
}

}  // namespace

double saved_by_balancing(double share, Rank size) { return share * (size - 1) / (size - share); }

std::string slow_rank_text(const std::string& name, const Stragglers::Finding& finding, Rank size) {
  return fmt::format(
      "{} is slow: of the last {} s the others waited {:.1f} s for it ({:.0f} %, {} times). "
      "{}. rueda top and ruedarun --summary show more; RUEDA_NAME_SLOW_RANKS=0 silences this",
      name, Stragglers::kWindow / Stragglers::kBucket, static_cast<double>(finding.cost) * 1e-9,
      100 * finding.share, finding.times, cause_of(finding, size));
}

}  // namespace rueda::engine

#include "launcher/job/fixed_epochs.h"

#include <algorithm>
#include <numeric>

namespace rueda::launcher {

std::vector<uint64_t> FixedEpochs::members() const {
  std::vector<uint64_t> members(hosts_.size());
  std::iota(members.begin(), members.end(), uint64_t{0});
  return members;
}

wire::NewEpoch FixedEpochs::answer(uint64_t member, const wire::Standing& standing) {
  using wire::EnterCause;
  wire::NewEpoch epoch;
  if (standing.cause != EnterCause::kFirst && standing.cause != EnterCause::kLeft) {
    epoch.answer = wire::EpochAnswer::kRefused;
    epoch.text =
        "this job has a fixed size: what it has lost does not come back (--min-np makes it "
        "elastic)";
    return epoch;
  }
  epoch.epoch = ++given_[member];
  const bool first = epoch.epoch == 1;
  newest_ = std::max(newest_, epoch.epoch);
  epoch.rank = static_cast<int32_t>(member);
  epoch.size = static_cast<int32_t>(hosts_.size());
  for (size_t rank = 0; rank < hosts_.size(); ++rank)
    epoch.members.push_back({rank, hosts_[rank], first ? -1 : static_cast<int32_t>(rank), false});
  return epoch;
}

}  // namespace rueda::launcher

#include "collectives/algorithms/meeting.h"

#include <algorithm>
#include <numeric>

namespace rueda::algorithms {

bool meets_by_itself(const CollectiveDesc& desc, Rank ranks) {
  const auto& counts = desc.counts;
  switch (desc.kind) {
    case CollectiveKind::kAllreduce:
      return std::any_of(counts.begin(), counts.end(), [](int64_t count) { return count > 0; });
    case CollectiveKind::kReducescatter:
      return std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count > 0; });
    case CollectiveKind::kAllgather:
      for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
        int64_t block = 0;
        for (size_t tensor = 0; tensor < desc.tensors; ++tensor)
          block += counts[tensor * static_cast<size_t>(ranks) + rank];
        if (block == 0) return false;
      }
      return true;
    case CollectiveKind::kAlltoall:
      for (size_t i = 0; i < counts.size(); ++i) {
        const bool own = i / static_cast<size_t>(ranks) == i % static_cast<size_t>(ranks);
        if (!own && counts[i] == 0) return false;
      }
      return true;
    default: return false;
  }
}

Meeting::Meeting(const direct::Group& group, bool needed)
    : group_(group),
      needed_(needed),
      moves_(needed ? 2 * static_cast<size_t>(group.size() - 1) : 0) {}

void Meeting::begin(transport::Tag call) {
  if (!needed_) return;
  for (Rank step = 1; step < group_.size(); ++step) {
    const Rank peer = group_.member((group_.rank + step) % group_.size());
    moves_.recv(group_.transport, peer, call + kTag, {});
    moves_.send(group_.transport, peer, call + kTag, {});
  }
}

}  // namespace rueda::algorithms

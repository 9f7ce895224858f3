#include "collectives/algorithms/host_map.h"

#include <algorithm>

namespace rueda::algorithms {

HostMap::HostMap(const std::vector<int>& host_of, Rank rank) {
  std::vector<int> seen;
  slices_ = 0;
  for (size_t member = 0; member < host_of.size(); ++member) {
    const auto at = std::find(seen.begin(), seen.end(), host_of[member]);
    const auto host = static_cast<size_t>(at - seen.begin());
    if (at == seen.end()) {
      seen.push_back(host_of[member]);
      members_.emplace_back();
    }
    consecutive_ = consecutive_ && host + 1 == members_.size();
    if (static_cast<Rank>(member) == rank) {
      host_ = host;
      local_ = members_[host].size();
    }
    members_[host].push_back(static_cast<Rank>(member));
    slices_ = std::max(slices_, members_[host].size());
  }
}

Rank HostMap::leader(size_t host, size_t slice) const {
  return members_[host][slice * members_[host].size() / slices_];
}

size_t HostMap::slices_begin(size_t host, size_t local) const {
  const size_t ranks = members_[host].size();
  return (local * slices_ + ranks - 1) / ranks;
}

}  // namespace rueda::algorithms

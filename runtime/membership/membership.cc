#include "runtime/membership/membership.h"

#include <algorithm>

namespace rueda::membership {

std::string name_of(Rank rank, const Introduction& member) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(member.pid) + " on " +
         member.host_name + ")";
}

Membership Membership::of(uint64_t epoch, Rank rank, const std::vector<Introduction>& members) {
  Membership made;
  made.epoch = epoch;
  made.rank = rank;
  made.size = static_cast<Rank>(members.size());
  std::vector<std::string> hosts;  // in order of their first rank
  std::vector<Rank> sizes;
  std::vector<Rank> local_rank;
  for (const Introduction& member : members) {
    made.names.push_back(name_of(static_cast<Rank>(made.names.size()), member));
    made.hosts.push_back(member.host_name);
    made.pids.push_back(member.pid);
    const auto found = std::find(hosts.begin(), hosts.end(), member.host_id);
    const auto host = static_cast<size_t>(found - hosts.begin());
    if (found == hosts.end()) {
      hosts.push_back(member.host_id);
      sizes.push_back(0);
    }
    made.host_of.push_back(static_cast<int>(host));
    local_rank.push_back(sizes[host]++);
  }
  const auto me = static_cast<size_t>(rank);
  const auto here = static_cast<size_t>(made.host_of[me]);
  made.local_rank = local_rank[me];
  made.local_size = sizes[here];
  made.cross_size = 0;
  for (size_t host = 0; host < hosts.size(); ++host) {
    if (sizes[host] <= made.local_rank) continue;  // no rank of this local rank there
    if (host < here) ++made.cross_rank;
    ++made.cross_size;
  }
  made.homogeneous =
      std::all_of(sizes.begin(), sizes.end(), [&](Rank size) { return size == sizes.front(); });
  return made;
}

std::vector<int> Membership::local_pids() const {
  std::vector<int> local;
  const int here = host_of[static_cast<size_t>(rank)];
  for (size_t other = 0; other < pids.size(); ++other) {
    if (host_of[other] == here) local.push_back(pids[other]);
  }
  return local;
}

}  // namespace rueda::membership

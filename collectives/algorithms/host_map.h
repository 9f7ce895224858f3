// HostMap: which ranks of a group share a host, and who carries what between the hosts.
//
// A vector that crosses hosts is cut into as many slices as the largest host has ranks. On each
// host every slice has one leader; a host with fewer ranks has leaders of several. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/base/types.h"

namespace rueda::algorithms {

class HostMap {
 public:
  HostMap() = default;
  // host_of: for each group rank a number of its host, any numbers. Hosts come in the order of
  // their first rank.
  HostMap(const std::vector<int>& host_of, Rank rank);

  size_t hosts() const { return members_.size(); }
  const std::vector<Rank>& members(size_t host) const { return members_[host]; }
  const std::vector<Rank>& local_members() const { return members_[host_]; }
  size_t host() const { return host_; }    // of this rank
  size_t local() const { return local_; }  // this rank among its host's
  size_t local_size() const { return members_[host_].size(); }
  size_t slices() const { return slices_; }
  // Ranks are numbered host by host, so that a host's blocks lie end to end.
  bool consecutive() const { return consecutive_; }
  // Several hosts, and a host with several ranks: hierarchical collectives save something.
  bool has_levels() const { return hosts() > 1 && slices_ > 1; }

  // Group rank that carries this slice on this host.
  Rank leader(size_t host, size_t slice) const;
  // Slices that a rank carries: [slices_begin(local), slices_begin(local + 1)) on its own host.
  size_t slices_begin(size_t host, size_t local) const;
  // Who on host `at` stands for the i-th rank of host `from`. Neighbours have the same or
  // neighbouring leaders.
  size_t proxy(size_t at, size_t from, size_t i) const {
    return i * members_[at].size() / members_[from].size();
  }

 private:
  std::vector<std::vector<Rank>> members_;
  size_t host_ = 0;
  size_t local_ = 0;
  size_t slices_ = 1;
  bool consecutive_ = true;
};

}  // namespace rueda::algorithms

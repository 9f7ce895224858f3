// Membership: who the ranks of a job are, and where.
//
// A plain value of one epoch: it owns nothing, does nothing and reads nothing. Who joins makes it
// (join.h); another epoch has another one, as a whole. The same on all ranks but for what is this
// rank's own: rank, local and cross rank, local size.
// Threads: any, as nobody changes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/base/types.h"

namespace rueda::membership {

// A rank as it tells the others of itself.
struct Introduction {
  std::string host_id;    // equal for ranks of one host (place.h)
  std::string host_name;  // as people call it
  int pid = 0;
};

struct Membership {
  uint64_t epoch = 0;
  Rank rank = 0;
  Rank size = 1;
  Rank local_rank = 0;  // among the ranks of this host
  Rank local_size = 1;
  Rank cross_rank = 0;  // among the hosts that have a rank of this local rank
  Rank cross_size = 1;
  bool homogeneous = true;  // every host has as many ranks
  // By rank.
  std::vector<std::string> names;  // "rank 1 (pid 4711 on node2)"
  std::vector<std::string> hosts;  // as people call them
  std::vector<int> pids;
  std::vector<int> host_of;  // a number of the host, in the order of the hosts' first ranks

  // members: by rank. Hosts are told apart by what ranks say of themselves, not by variables that
  // somebody else has set.
  static Membership of(uint64_t epoch, Rank rank, const std::vector<Introduction>& members);

  const std::string& name(Rank of) const { return names[static_cast<size_t>(of)]; }
  const std::string& own_name() const { return name(rank); }
  // Of the processes on this host.
  std::vector<int> local_pids() const;
};

// "rank 1 (pid 4711 on node2)"
std::string name_of(Rank rank, const Introduction& member);

}  // namespace rueda::membership

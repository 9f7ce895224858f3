// Which rank runs where: from -np and a list of hosts to one place per rank, host by host.
//
// Pure. Ranks fill one host's slots before the next (block placement). A rank's cross rank is its
// host's number among the hosts that have a rank of the same local rank.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "launcher/job/hostfile.h"

namespace rueda::launcher {

struct RankPlace {
  Rank rank = 0, size = 1;
  Rank local_rank = 0, local_size = 1;
  Rank cross_rank = 0, cross_size = 1;
};

// A host of the job and its ranks, of which there is at least one.
struct HostPlan {
  HostSlots host;
  bool ours = false;  // the machine that ruedarun runs on
  std::vector<RankPlace> places;
};

// Whether a host of this name is this machine, whose names these are. Where "127.0.0.1" is among
// them all of 127.0.0.0/8 is.
bool is_ours(const std::string& host, const std::vector<std::string>& own_names);

// `hosts` empty: as many slots on this machine as needed. Names that are this machine's are one
// host. InvalidArgument when there are fewer slots than ranks; `source` says where the hosts are
// from ("-H a:1,b:1").
Result<std::vector<HostPlan>> plan_hosts(int num_proc, const std::vector<HostSlots>& hosts,
                                         const std::vector<std::string>& own_names,
                                         const std::string& source);

}  // namespace rueda::launcher

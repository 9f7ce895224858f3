// Which rank runs where: from -np and -H to one place per rank.
//
// Pure. This version knows one host, the one ruedarun runs on; cross ranks are there because ranks
// are told theirs.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::launcher {

struct RankPlace {
  Rank rank = 0, size = 1;
  Rank local_rank = 0, local_size = 1;
  Rank cross_rank = 0, cross_size = 1;
};

// One part of -H: "name:slots", "name" (one slot), "[::1]:slots".
struct HostSlots {
  std::string host;
  int slots = 1;
};

// "a:2,b:4". InvalidArgument quotes the part that is wrong.
Result<std::vector<HostSlots>> parse_hosts(const std::string& hosts);

// `hosts` as written after -H, empty for none; `own_names` are the names this machine answers to.
Result<std::vector<RankPlace>> plan_hosts(int num_proc, const std::string& hosts,
                                          const std::vector<std::string>& own_names);

}  // namespace rueda::launcher

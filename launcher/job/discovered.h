// What a host discovery script has printed, as hosts.
//
//   node1:4
//                     blank lines say nothing
//   node2             --slots-per-host
//   [fd00::1]:2
//   node3:0           not to be used now
#pragma once

#include <string_view>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/job/hostfile.h"

namespace rueda::launcher {

inline constexpr size_t kMostDiscoveredBytes = 1 << 20;

// In the order of the text, without hosts of no slots. One wrong line and none of it counts:
// InvalidArgument names the line, as "line 3: ...". `slots_per_host`: of a host without a number;
// 0: then that is wrong. Pure.
Result<std::vector<HostSlots>> parse_discovered(std::string_view text, int slots_per_host);

}  // namespace rueda::launcher

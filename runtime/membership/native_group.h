// Ranks of the job as a group that moves and reduces data (algorithms/native_communicator.h).
#pragma once

#include <vector>

#include "collectives/algorithms/native_communicator.h"
#include "collectives/base/config.h"
#include "runtime/membership/fabric.h"
#include "runtime/membership/host_memory.h"

namespace rueda::membership {

// members: ranks of the job, this one among them. The group borrows the transport.
algorithms::NativeGroup native_group(const Config& config, const HostMemory& memory,
                                     const Fabric& fabric, std::vector<Rank> members);

}  // namespace rueda::membership

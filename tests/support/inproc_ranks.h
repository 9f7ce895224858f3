// Ranks as threads of one process, connected by rings in its heap: the smallest job, without store,
// sockets to meet over and shared memory.
#pragma once

#include <memory>
#include <vector>

#include "collectives/base/status.h"
#include "runtime/membership/join.h"

namespace rueda::testing {

// By rank. They may be destroyed in any order.
Result<std::vector<std::unique_ptr<membership::Joined>>> make_inproc_ranks(Rank size,
                                                                           uint64_t epoch);

}  // namespace rueda::testing

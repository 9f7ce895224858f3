// Files without a name, in memory: what processes of a host share, and what only they may read.
#pragma once

#include <string>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"

namespace rueda {

// A new empty one, closed on exec, that can be sealed. `name` is for /proc, `what` is what errors
// say has failed. Where the system has none (a seccomp profile, an old kernel), the error says so.
Result<UniqueFd> memory_file(const char* name, const std::string& what);

}  // namespace rueda

// What the kernel says of this process's memory.
#pragma once

#include <cstdint>

#include "collectives/host/cgroup.h"

namespace rueda::host {

// The most bytes that were resident at once since the process began, with those that it shares;
// 0 where the kernel does not say.
uint64_t resident_peak(const ReadFile& read);

}  // namespace rueda::host

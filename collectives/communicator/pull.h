// Reading the private memory of another process of this host, where the kernel allows it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "collectives/base/status.h"
#include "collectives/transport/arena.h"

namespace rueda::communicator {

// Copies `bytes` from `address` in process `pid`. The peer must keep the memory as it is meanwhile.
// kUnavailable: there is no such process any more.
Status pull(pid_t pid, uint64_t address, std::byte* to, size_t bytes);

// Can this process read the memory of the arena's owner? Tries it on the arena's cookie, so a pid
// of another namespace is not mistaken for the owner's.
bool probe_pull(const transport::Arena& peer);

}  // namespace rueda::communicator

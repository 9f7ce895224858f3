// Reading the private memory of another process of this host, where the kernel allows it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "collectives/base/status.h"
#include "collectives/host/arena.h"

namespace rueda::shm {

// Copies `bytes` from `address` in process `pid`. The peer must keep the memory as it is meanwhile.
// kUnavailable: there is no such process any more.
Status read_peer(pid_t pid, uint64_t address, std::byte* to, size_t bytes);

// Can this process read the memory of the arena's owner? Tries it on the arena's cookie, so a pid
// of another namespace is not mistaken for the owner's.
bool probe_cma(const host::Arena& peer);

}  // namespace rueda::shm

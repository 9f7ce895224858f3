// How large the heap is: what the process may use of this host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "collectives/base/types.h"
#include "collectives/host/cgroup.h"

namespace rueda::host {

// Bytes that the kernel says can be had without swapping; nothing where it does not say.
std::optional<uint64_t> available_memory(const ReadFile& read);

// Address space for the heap: `configured` (RUEDA_HEAP_BYTES), or if that is 0 the smaller of
// physical memory and the cgroup's limit, so that address space never runs out first. Bounded so
// that the heaps of `ranks_of_host` ranks fit into each of their address spaces. 256 MB under
// sanitizers, whose shadow memory grows with it.
size_t heap_size(int64_t configured, Rank ranks_of_host);

}  // namespace rueda::host

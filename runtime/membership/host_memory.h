// HostMemory: what ranks of one host share: their arenas, with channels, rings and boards, and
// their heaps.
//
// Ownership: shared with the channels and connections that move bytes through it; unmapped with the
//            last of them.
// Threads:   who is in here is fixed once all have joined: any thread may ask. What lies in the
//            memory has rules of its own (arena.h, heap.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/base/types.h"
#include "collectives/host/arena.h"
#include "collectives/host/heap.h"

namespace rueda::membership {

struct HostMemory {
  Rank rank = 0;  // this one
  // By rank, a number of its host: equal where ranks share memory.
  std::vector<int> host_of;
  // By rank, the own one included; null where memory is not shared. A rank alone has none.
  std::vector<std::shared_ptr<host::Arena>> arenas;
  std::vector<std::shared_ptr<host::PeerHeap>> heaps;

  host::Arena* own() const { return arenas[static_cast<size_t>(rank)].get(); }
  // Every rank of the job can map every other's.
  bool has_all() const;
  // This rank, one of these, shares memory with another of them.
  bool has_some(const std::vector<Rank>& members) const;
  // Where ranks note when they last heard of ranks of other hosts: the own board first.
  std::vector<std::atomic<int64_t>*> boards() const;
};

}  // namespace rueda::membership

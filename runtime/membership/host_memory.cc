#include "runtime/membership/host_memory.h"

#include <algorithm>

namespace rueda::membership {

bool HostMemory::has_all() const {
  return arenas.size() == 1 || std::all_of(arenas.begin(), arenas.end(),
                                           [](const auto& arena) { return arena != nullptr; });
}

// This rank maps the memory of all ranks of its host and of no other.
bool HostMemory::has_some(const std::vector<Rank>& members) const {
  return std::any_of(members.begin(), members.end(), [&](Rank member) {
    return member != rank && arenas[static_cast<size_t>(member)] != nullptr;
  });
}

std::vector<std::atomic<int64_t>*> HostMemory::boards() const {
  std::vector<std::atomic<int64_t>*> boards;
  if (own() == nullptr) return boards;
  boards.push_back(own()->heard());
  for (const auto& arena : arenas) {
    if (arena != nullptr && arena.get() != own()) boards.push_back(arena->heard());
  }
  return boards;
}

}  // namespace rueda::membership

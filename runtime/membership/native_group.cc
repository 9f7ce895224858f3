#include "runtime/membership/native_group.h"

#include <utility>

namespace rueda::membership {
namespace {

std::optional<DType> host_wire_of(const Config& config) {
  if (config.host_compression == "fp16") return DType::kFloat16;
  if (config.host_compression == "bf16") return DType::kBFloat16;
  return std::nullopt;
}

}  // namespace

algorithms::NativeGroup native_group(const Config& config, const HostMemory& memory,
                                     const Fabric& fabric, std::vector<Rank> members) {
  algorithms::NativeGroup group;
  group.transport = fabric.transport.get();
  group.members = std::move(members);
  if (group.members.size() == 1) return group;
  const int here = memory.host_of[static_cast<size_t>(memory.rank)];
  shm::ChannelGroup local;
  for (const Rank member : group.members) {
    const auto at = static_cast<size_t>(member);
    const auto& arena = memory.arenas[at];
    group.host_of.push_back(memory.host_of[at]);
    if (memory.host_of[at] != here || arena == nullptr) continue;
    if (member == memory.rank) local.rank = static_cast<Rank>(local.arenas.size());
    local.arenas.push_back(arena);
    local.ringers.push_back({fabric.ringers[at].fd, arena->channel_word()});
    const auto& heap = memory.heaps[at];
    local.heaps.push_back(heap ? shm::HeapView{heap->base(), heap->bytes()} : shm::HeapView{});
  }
  if (local.arenas.size() == group.members.size()) {
    group.arenas = std::move(local.arenas);
    group.ringers = std::move(local.ringers);
    group.heaps = std::move(local.heaps);
    group.host_of.clear();
    return group;
  }
  group.local = std::move(local);
  group.wire = host_wire_of(config);
  group.exchange = algorithms::exchange_named(config.host_exchange);
  return group;
}

}  // namespace rueda::membership

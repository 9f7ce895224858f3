// What the large calls of an ordered group go through where all its members share memory.
//
//   buffers    a channel has none at first, as most groups never need them. Before the first call
//              that does each member reserves its own and says whether it could: one exchange more
//              in the group's life. If one could not, large calls are messages from there on
//   protocol   through buffers, or read by the kernel. The first member chooses, as the root of a
//              process set does, and its entry of the call says how; no message of its own
#include "collectives/base/log.h"
#include "collectives/desc/tags.h"
#include "runtime/engine/ordered_call.h"
#include "runtime/membership/native_group.h"

namespace rueda::engine {
namespace {

using negotiation::GroupEntry;
using negotiation::ProtocolChooser;

constexpr std::byte kReservedHere{1};
constexpr size_t kMostLate = 128;  // members whose entries surely need no buffers

// A reduce is an allreduce whose result is one member's alone.
CollectiveKind chosen_kind(CollectiveKind kind) {
  return kind == CollectiveKind::kReduce ? CollectiveKind::kAllreduce : kind;
}

int64_t bytes_of_all(const AskedCall& asked) {
  int64_t bytes = 0;
  for (const wire::Request& tensor : asked.tensors) bytes += bytes_of(tensor);
  return bytes;
}

}  // namespace

// ---- buffers ----

bool OrderedGroup::reserves_late(const membership::HostMemory& memory,
                                 const std::vector<Rank>& ranks) {
  const int here = memory.host_of[static_cast<size_t>(memory.rank)];
  return ranks.size() <= kMostLate && std::all_of(ranks.begin(), ranks.end(), [&](Rank rank) {
           const auto at = static_cast<size_t>(rank);
           return memory.arenas[at] != nullptr && memory.host_of[at] == here;
         });
}

Status OrderedGroup::begin_asking(Call* call) {
  const Status reserved = shared_.memory->own()->reserve_buffers(static_cast<size_t>(channels_));
  if (!reserved.ok()) {
    RUEDA_WARN("coordinator", "large tensors of {} go by messages: {}", set_->describe(),
               reserved.message());
  }
  CollectiveDesc desc;
  desc.kind = CollectiveKind::kAllgather;
  desc.counts.assign(members_.size(), 1);
  call->answers.assign(members_.size() + 1, std::byte{});  // the last: this member's
  if (reserved.ok()) call->answers.back() = kReservedHere;
  RUEDA_ASSIGN_OR_RETURN(call->asking, data_->init(std::move(desc)));
  call->asking->tensors()[0].in = &call->answers.back();
  call->asking->tensors()[0].out = call->answers.data();
  call->asking->start({});
  return {};
}

void OrderedGroup::hear_answers(Call* call) {
  call->asking.reset();
  const bool all = std::all_of(call->answers.begin(), call->answers.end() - 1,
                               [](std::byte answer) { return answer == kReservedHere; });
  buffers_ = all ? Buffers::kReserved : Buffers::kLacking;
  if (all) return;
  algorithms::NativeGroup group =
      membership::native_group(*shared_.config, *shared_.memory, *shared_.fabric, set_->ranks);
  group.tags = tags_;
  group.arenas.clear();
  group.host_of.clear();
  // Entries go through the channel, so their tags are free.
  by_messages_ =
      std::make_unique<algorithms::NativeCommunicator>(group, algorithms::Order::kEntries);
  cache_.forget_large();
}

// ---- the protocol ----

// All members share memory, and each has seen that it can read all others'.
bool OrderedGroup::sees_cma() {
  if (sees_cma_ || !data_->shares_memory()) return sees_cma_;
  return sees_cma_ = std::all_of(set_->ranks.begin(), set_->ranks.end(), [&](Rank rank) {
           const auto& arena = shared_.memory->arenas[static_cast<size_t>(rank)];
           return arena != nullptr && arena->channel(0)->has_cma.load(std::memory_order_acquire) ==
                                          host::ChannelControl::kHasCma;
         });
}

// In this member's entry of the call.
uint32_t OrderedGroup::memory_flags(const Call& call) {
  if (!sees_cma()) return 0;
  const int64_t bytes = bytes_of_all(*call.asked);
  if (*set_->place != 0 || bytes < ProtocolChooser::kSmallest) return GroupEntry::kCma;
  const CollectiveKind kind = chosen_kind(call.asked->first().kind);
  const uint32_t chosen = protocols_.choose(kind, bytes, std::chrono::steady_clock::now());
  return GroupEntry::kCma | (chosen == ProtocolChooser::kCma ? GroupEntry::kByCma : 0);
}

ShmProtocol OrderedGroup::protocol_of(const Call& call) {
  const auto& all = call.entry->all;
  const bool able = std::all_of(all.begin(), all.end(), [](const GroupEntry& entry) {
    return (entry.flags & GroupEntry::kCma) != 0;
  });
  if (able) protocols_.set_cma_available(true);
  return able && (all.front().flags & GroupEntry::kByCma) != 0 ? ShmProtocol::kCma
                                                               : ShmProtocol::kStaged;
}

void OrderedGroup::measure_protocols() {
  if (*set_->place != 0) return;
  data_->on_measured([this](const CollectiveDesc& desc, int64_t bytes, int64_t ns) {
    protocols_.measured(desc.kind, bytes, static_cast<uint32_t>(desc.protocol), ns,
                        std::chrono::steady_clock::now());
  });
}

}  // namespace rueda::engine

#include "collectives/algorithms/native_communicator.h"

#include <algorithm>
#include <utility>

#include "collectives/algorithms/adasum.h"
#include "collectives/base/check.h"
#include "collectives/desc/tags.h"

namespace rueda::algorithms {
namespace {

direct::Group direct_group_of(const NativeGroup& group) {
  const auto me = std::find(group.members.begin(), group.members.end(), group.transport->rank());
  RUEDA_CHECK(me != group.members.end(), "this rank is a member");
  return {group.transport, group.members, static_cast<Rank>(me - group.members.begin())};
}

// Adasum goes over messages wherever its ranks are.
bool by_messages(const CollectiveDesc& desc) {
  return desc.kind == CollectiveKind::kAllreduce && desc.op == ReduceOp::kAdasum;
}

}  // namespace

NativeCommunicator::NativeCommunicator(const NativeGroup& group, Order order)
    : direct_(direct_group_of(group)),
      tag_space_(group.tags | transport::Tag{order == Order::kPlanned} << tags::kOrderShift),
      generation_tag_(tag_space_) {
  const auto number = static_cast<size_t>(order);
  if (size() > 1 && group.arenas.size() == group.members.size()) {
    const shm::ChannelGroup channels{rank(), group.arenas, group.first_channels, group.heaps,
                                     group.ringers};
    channel_ = std::make_unique<shm::Channel>(channels, number);
    return;
  }
  if (group.host_of.empty()) return;
  HostMap map(group.host_of, rank());
  if (map.hosts() < 2) return;
  shm::ChannelGroup local = group.local;
  if (!group.first_channels.empty()) {
    for (const Rank member : map.local_members())
      local.first_channels.push_back(group.first_channels[static_cast<size_t>(member)]);
  }
  hierarchy_ = std::make_unique<Hierarchy>(direct_, std::move(map), local, 2 * number, group.wire,
                                           group.exchange);
}

transport::Tag NativeCommunicator::next_tag() {
  using namespace tags;
  constexpr transport::Tag kMask = (transport::Tag{1} << (kSetShift - kCallShift)) - 1;
  constexpr transport::Tag kFewBits = (transport::Tag{1} << (kGenerationShift - kCallShift)) - 1;
  const uint64_t call = calls_++;
  const bool negotiated = tag_space_ >> kOrderShift == 0;
  return generation_tag_ | (call & (negotiated ? kMask : kFewBits)) << kCallShift;
}

Result<std::unique_ptr<Collective>> NativeCommunicator::init(CollectiveDesc desc) {
  if (channel_ && !by_messages(desc))
    return std::unique_ptr<Collective>(new shm::ChannelOp(channel_.get(), std::move(desc)));
  return std::unique_ptr<Collective>(new ScriptedCollective(
      std::move(desc), [this] { return next_tag(); },
      [this](const CollectiveDesc& of, std::span<const Part> tensors) {
        return make_script(of, tensors);
      }));
}

Script NativeCommunicator::make_script(const CollectiveDesc& desc, std::span<const Part> tensors) {
  if (by_messages(desc)) return adasum(direct_, desc, tensors);
  const bool over_levels = hierarchy_ != nullptr && hierarchy_->has_levels();
  switch (desc.kind) {
    case CollectiveKind::kAllreduce:
      if (hierarchy_) return hierarchy_->script(desc, tensors);
      return direct::allreduce(direct_, desc, tensors);
    case CollectiveKind::kAlltoall: return direct::alltoall(direct_, desc, tensors);
    case CollectiveKind::kReducescatter:
      if (over_levels) return hierarchy_->script(desc, tensors);
      return direct::reduce_scatter(direct_, desc, tensors);
    case CollectiveKind::kAllgather:
      if (over_levels) return hierarchy_->script(desc, tensors);
      return direct::allgather(direct_, desc, tensors);
    case CollectiveKind::kBroadcast:
      if (over_levels) return hierarchy_->script(desc, tensors);
      return direct::broadcast(direct_, desc, tensors);
    default:
      if (over_levels) return hierarchy_->script(desc, tensors);
      return direct::barrier(direct_, desc, tensors);
  }
}

bool NativeCommunicator::progress() {
  if (channel_) return channel_->progress();
  return hierarchy_ && hierarchy_->progress();
}

bool NativeCommunicator::needs_buffers(const Collective& collective) {
  const auto* const in_channel = dynamic_cast<const shm::ChannelOp*>(&collective);
  return in_channel != nullptr && in_channel->is_large();
}

bool NativeCommunicator::waits_for_channels() const {
  if (hierarchy_) return !hierarchy_->idle();
  return channel_ && !channel_->idle();
}

const Status& NativeCommunicator::failure() const {
  static const Status kNone;
  return channel_ ? channel_->failure() : kNone;
}

void NativeCommunicator::abandon() {
  if (hierarchy_) hierarchy_->abandon();
  if (channel_) channel_->abandon();
}

void NativeCommunicator::begin_generation(uint64_t generation) {
  calls_ = 0;
  generation_tag_ = tag_space_ | generation << tags::kGenerationShift;
  if (channel_) channel_->begin_generation(generation);
  if (hierarchy_) hierarchy_->begin_generation(generation);
}

void NativeCommunicator::end_generation() {
  // What some rank has never started has left messages, and some may still be on their way.
  constexpr transport::Tag kLast = (transport::Tag{1} << tags::kGenerationShift) - 1;
  direct_.transport->expire(generation_tag_, generation_tag_ | kLast);
  if (channel_) channel_->end_generation();
  if (hierarchy_) hierarchy_->end_generation();
}

shm::Channel::Bytes NativeCommunicator::channel_totals() const {
  if (hierarchy_) return hierarchy_->channel_totals();
  return channel_ ? channel_->bytes() : shm::Channel::Bytes{};
}

void NativeCommunicator::on_measured(shm::Channel::Measured measured) {
  if (channel_) channel_->on_measured(std::move(measured));
}

void NativeCommunicator::watch(shm::ArrivalWatch* watch) {
  if (channel_) channel_->watch(watch);
  if (hierarchy_) hierarchy_->watch(watch);
}

}  // namespace rueda::algorithms

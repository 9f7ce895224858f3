#include "runtime/engine/group_devices.h"

#include <algorithm>
#include <utility>

#include "collectives/desc/tags.h"

namespace rueda::engine {
namespace {

// Of a group's communicators; those of pairs meet no others between the two.
constexpr uint32_t kOfAll = 0;
constexpr uint32_t kOfPair = 1;

}  // namespace

GroupDevices::Made GroupDevices::make(std::vector<Rank> members, transport::Tag tag,
                                      bool packs) const {
  nccl::DeviceGroup group;
  group.transport = transport_;
  for (const Rank rank : members) group.names.push_back(membership_->name(rank));
  group.members = std::move(members);
  group.tag = tag;
  group.machine = machine_;
  group.packs = packs;
  return std::make_unique<nccl::DeviceCommunicator>(std::move(group));
}

nccl::DeviceCommunicator* GroupDevices::of_all(const std::vector<Rank>& members, uint32_t number) {
  if (all_ == nullptr) {
    const Rank lowest = *std::min_element(members.begin(), members.end());
    all_ = make(members, tags::of_group_device(lowest, number, kOfAll), true);
  }
  return all_.get();
}

nccl::DeviceCommunicator* GroupDevices::pair(Rank peer, uint32_t number) {
  Made& made = pairs_[peer];
  if (made == nullptr) {
    const Rank me = membership_->rank;
    std::vector<Rank> members = {std::min(me, peer)};
    if (peer != me) members.push_back(std::max(me, peer));
    const Rank lower = members.front();
    made = make(std::move(members), tags::of_group_device(lower, number, kOfPair), false);
  }
  return made.get();
}

template <typename Function>
void GroupDevices::for_each(Function function) const {
  if (all_) function(*all_);
  for (const auto& [peer, made] : pairs_) function(*made);
}

bool GroupDevices::idle() const {
  bool idle = true;
  for_each([&](const nccl::DeviceCommunicator& of) { idle = idle && of.idle(); });
  return idle;
}

bool GroupDevices::uses_gpu() const {
  bool uses = false;
  for_each([&](const nccl::DeviceCommunicator& of) { uses = uses || of.uses_gpu(); });
  return uses;
}

void add_registered(const nccl::Registrations::Totals& registered, counters::Values* totals) {
  totals->nccl_registrations += registered.blocks;
  totals->nccl_windows += registered.windows;
  totals->nccl_registered_bytes += registered.bytes;
}

void GroupDevices::add_to(counters::Values* totals) const {
  for_each([&](const nccl::DeviceCommunicator& of) { add_registered(of.registered(), totals); });
}

Status GroupDevices::health() const {
  Status health;
  for_each([&](const nccl::DeviceCommunicator& of) {
    if (health.ok()) health = of.health();
  });
  return health;
}

void GroupDevices::abandon() {
  for_each([](nccl::DeviceCommunicator& of) { of.abandon(); });
}

bool GroupDevices::abandon_pair(Rank peer) {
  const auto pair = pairs_.find(peer);
  if (pair == pairs_.end() || pair->second->idle()) return false;
  pair->second->abandon();
  return true;
}

}  // namespace rueda::engine

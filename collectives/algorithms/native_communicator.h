// NativeCommunicator: channels of shared memory where all members share a host, a hierarchy where
// some do and for every allreduce between hosts, direct messages else.
//
// The choice is a function of the members and their connections alone, the same on all ranks.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/algorithms/hierarchy.h"
#include "collectives/desc/communicator.h"
#include "collectives/shm/channel.h"

namespace rueda::algorithms {

// What the members have in common.
struct NativeGroup {
  transport::Transport* transport = nullptr;  // borrowed, outlives the communicator
  std::vector<Rank> members;                  // the transport's ranks
  transport::Tag tags = 0;  // tells its messages from those of other groups: desc/tags.h
  // By group rank, which of its arena's channels is the group's first. Empty: the arena's first.
  std::vector<size_t> first_channels;
  // By group rank; empty unless every member can map every other's.
  std::vector<std::shared_ptr<host::Arena>> arenas;
  std::vector<host::Ringer> ringers;  // of channels
  std::vector<shm::HeapView> heaps;   // empty: none
  // By group rank, a number of the host: equal where memory is shared. Empty: nobody shares any.
  std::vector<int> host_of;
  shm::ChannelGroup local;           // of the members on this rank's host; no arenas: alone there
  std::optional<DType> wire;         // f32 sums travel between hosts as this
  std::optional<Exchange> exchange;  // of every allreduce between hosts; empty: by exchange.h
};

// Two orders of collectives that do not meet, each with channels and tags of its own. In a process
// set: what is negotiated, and what a step plan fixes. In an ordered group: what the members say of
// their calls, and the calls.
enum class Order : uint8_t { kNegotiated = 0, kPlanned = 1, kEntries = 0, kData = 1 };

class NativeCommunicator final : public Communicator {
 public:
  explicit NativeCommunicator(const NativeGroup& group, Order order = Order::kNegotiated);

  Rank rank() const override { return direct_.rank; }
  Rank size() const override { return direct_.size(); }
  Result<std::unique_ptr<Collective>> init(CollectiveDesc desc) override;
  bool progress() override;
  void abandon() override;
  void begin_generation(uint64_t generation) override;
  void end_generation() override;

  // All members share a host: everything but Adasum goes through one channel.
  bool shares_memory() const { return channel_ != nullptr; }
  // Of one channel: may this collective of its need the channel's buffers?
  static bool needs_buffers(const Collective& collective);
  // Something is under way whose news peers tell by the channels' bell.
  bool waits_for_channels() const;
  // Why shared memory does nothing any more; ok else.
  const Status& failure() const;
  shm::Channel::Bytes channel_totals() const;

  // Of the one channel; nothing is told elsewhere.
  void on_measured(shm::Channel::Measured measured);
  // Hears of this rank's host: for whom its ranks wait. Messages tell who has come, not when.
  void watch(shm::ArrivalWatch* watch);

 private:
  Script make_script(const CollectiveDesc& desc, std::span<const Part> tensors);
  transport::Tag next_tag();

  direct::Group direct_;
  const transport::Tag tag_space_;
  transport::Tag generation_tag_;
  uint64_t calls_ = 0;
  std::unique_ptr<shm::Channel> channel_;
  std::unique_ptr<Hierarchy> hierarchy_;  // of several hosts; then there is no channel_
};

}  // namespace rueda::algorithms

// NativeCommunicator: channels of shared memory where all members share a host, a hierarchy where
// some do and for every allreduce between hosts, direct messages else.
//
// The choice is a function of the members and their links alone, the same on all ranks.
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "collectives/algorithms/hierarchy.h"
#include "collectives/desc/communicator.h"
#include "collectives/shm/channel.h"

namespace rueda::algorithms {

// What the members have in common; built by bootstrap.
struct NativeGroup {
  transport::Transport* transport = nullptr;  // borrowed, outlives the communicator
  std::vector<Rank> members;                  // the transport's ranks
  uint32_t process_set = 0;  // tells its messages from those of other groups; below 2^15
  size_t first_channel = 0;  // its channels in the arenas: this one and the next
  // By group rank; empty unless every member can map every other's.
  std::vector<std::shared_ptr<host::Arena>> arenas;
  std::vector<host::Ringer> ringers;  // of channels
  std::vector<shm::HeapView> heaps;   // empty: none
  // By group rank, a number of the host: equal where memory is shared. Empty: nobody shards any.
  std::vector<int> host_of;
  shm::ChannelGroup local;           // of the members on this rank's host; no arenas: alone there
  std::optional<DType> wire;         // f32 sums travel between hosts as this
  std::optional<Exchange> exchange;  // of every allreduce between hosts; empty: by exchange.h
};

class NativeCommunicator final : public Communicator {
 public:
  explicit NativeCommunicator(NativeGroup group);

  Rank rank() const override { return rank_; }
  Rank size() const override { return static_cast<Rank>(group_.members.size()); }
  Task allreduce(std::vector<Part> parts, DType dtype, ReduceOp op,
                 const Scaling& scaling) override;
  Task reducescatter(const std::byte* in, std::byte* out, std::vector<int64_t> counts, DType dtype,
                     ReduceOp op, const Scaling& scaling) override;
  Task allgather(std::vector<GatherPart> parts) override;
  Task broadcast(Rank root, std::vector<BroadcastPart> parts) override;
  Task alltoall(const std::byte* in, std::byte* out, std::vector<int64_t> bytes) override;
  // Where the members share a host.
  void time_next(StageTimes* times) override { times_ = times; }
  // Of the channel that the collectives above use.
  bool progress() override;
  void abandon() override;

  // For large private tensors of calls from here on; the same on all ranks. At first kStaged.
  void use_protocol(shm::Protocol protocol) { protocol_ = protocol; }
  // A channel for its owner to drive, 0 being the one of the collectives above. Null where the
  // members do not share a host.
  shm::Channel* channel(size_t number) const { return channels_[number].get(); }
  // Of the channel that its own calls use (channel.h).
  void on_measured(shm::Channel::Measured measured) {
    if (channels_[0]) channels_[0]->on_measured(std::move(measured));
  }
  // Something is under way whose news peers tell by the channel's bell.
  bool waits_for_channels() const;
  // Of all channels.
  shm::Channel::Bytes channel_totals() const;

 private:
  // A fresh tag space for the next call.
  direct::Group next_call();
  Task run_in_channel(std::shared_ptr<shm::Job> job);

  NativeGroup group_;
  Rank rank_ = 0;
  uint64_t calls_ = 0;
  shm::Protocol protocol_ = shm::Protocol::kStaged;
  StageTimes* times_ = nullptr;
  std::array<std::unique_ptr<shm::Channel>, host::kChannels> channels_;
  std::unique_ptr<Hierarchy> hierarchy_;        // of several hosts; then there are no channels_
  bool has_levels_ = false;                     // the hierarchy serves more than allreduce
  std::deque<std::shared_ptr<shm::Job>> jobs_;  // under way: the channel has pointers to them
};

}  // namespace rueda::algorithms

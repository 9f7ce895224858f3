// Hierarchy: collectives of a group that spans hosts, with several ranks on some of them.
//
// Inside a host data moves through channels of shared memory, between hosts every local rank
// carries its own slice over its own connections, and each byte crosses a link between hosts once:
//
//   allreduce       chunk by chunk, several under way:
//                     down   reduce-scatter inside the host: each carrier has its slice, summed
//                     cross  host_exchange.h between the carriers of a slice, by exchange.h
//                     up     allgather inside the host
//                   2(H-1)/H*N bytes per host. Small ones: one carrier per host. Where every host
//                   has one rank there is no down and no up: exchanged where the result will be.
//   reducescatter   down for each destination host, then the sums go to their owners
//   allgather       each block once to every other host, then allgather inside the host
//   broadcast       root -> one rank of each other host (chain), then broadcast inside the host
//   alltoall        needs no levels: every pair's block is different (direct.h)
//
// Order of a reduction: the ranks of a host in rank order, rounded to the dtype, then the hosts in
// the order of their first ranks. Sizes, chunks, slices and protocols do not change a bit.
//
// Channels run jobs in the order of their start, alike on all local ranks, and what comes from
// other hosts comes in any order. So calls take turns: there is a channel for the way down and one
// for the way up, and in each the jobs of a call are started after all jobs of the calls before it.
//
// Ownership: tensors are borrowed until the task is done. Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/host_exchange.h"
#include "collectives/algorithms/host_map.h"
#include "collectives/shm/channel.h"

namespace rueda::algorithms {

// Which call may start jobs now. A call passes when it has no more to start.
class Turns {
 public:
  bool is_at(uint64_t call) const { return next_ == call; }
  void pass(uint64_t call) {
    passed_.insert(call);
    while (passed_.erase(next_) > 0) ++next_;
  }

 private:
  uint64_t next_ = 0;
  std::set<uint64_t> passed_;
};

class Hierarchy {
 public:
  // local: the channels of this rank's host, in the order of map.local_members(); no arenas where
  // this rank is alone there. first_channel: it and the next. exchange: the one for all sizes.
  Hierarchy(HostMap map, const shm::ChannelGroup& local, size_t first_channel,
            std::optional<DType> wire, std::optional<Exchange> exchange);

  // group: with a fresh tag space for the call.
  Task allreduce(const direct::Group& group, std::vector<Part> parts, DType dtype, ReduceOp op,
                 const Scaling& scaling);
  Task reducescatter(const direct::Group& group, const std::byte* in, std::byte* out,
                     std::vector<int64_t> counts, DType dtype, ReduceOp op, const Scaling& scaling);
  Task allgather(const direct::Group& group, std::vector<GatherPart> parts);
  Task broadcast(const direct::Group& group, Rank root, std::vector<BroadcastPart> parts);

  bool progress();
  bool idle() const;
  void abandon();
  shm::Channel::Bytes channel_totals() const;

  // ---- for the calls
  const HostMap& map() const { return map_; }
  std::optional<DType> wire_of(DType dtype, ReduceOp op) const;
  Exchange exchange_of(int64_t bytes) const {
    return exchange_.value_or(choose_exchange(map_.hosts(), bytes));
  }
  shm::Channel* down() const { return down_.get(); }  // null: alone on this host
  shm::Channel* up() const { return up_.get(); }
  Turns& down_turns() { return down_turns_; }
  Turns& up_turns() { return up_turns_; }

 private:
  HostMap map_;
  std::optional<DType> wire_;
  std::optional<Exchange> exchange_;  // asked for; else by size
  std::unique_ptr<shm::Channel> down_;
  std::unique_ptr<shm::Channel> up_;
  Turns down_turns_;
  Turns up_turns_;
  uint64_t calls_ = 0;
};

}  // namespace rueda::algorithms

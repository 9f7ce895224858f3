// Hierarchy: collectives of a group that spans hosts, with several ranks on some of them.
//
// Inside a host data moves through channels of shared memory, between hosts every local rank
// carries its own slice over its own connections, and each byte crosses a connection between hosts
// once:
//
//   allreduce       chunk by chunk, several under way:
//                     reduce-scatter inside the host: each slice leader has its slice, summed
//                     host_exchange.h between the leaders of a slice, by exchange.h
//                     allgather inside the host
//                   2(H-1)/H*N bytes per host. Small ones: one slice leader per host. Where every
//                   host has one rank only the exchange is left, made where the result will be.
//   reducescatter   reduce-scatter inside the host for each destination host, then the sums go to
//                   their owners
//   allgather       each block once to every other host, then allgather inside the host
//   broadcast       root -> one rank of each other host (chain), then broadcast inside the host
//   barrier         meeting inside the host, of one rank of each host, inside the host again
//   alltoall        needs no levels: every pair's block is different (direct.h)
//
// Order of a reduction: the ranks of a host in rank order, rounded to the dtype, then the hosts in
// the order of their first ranks. Sizes, chunks, slices and protocols do not change a bit.
//
// Channels run operations in the order of their start, alike on all local ranks, and what comes
// from other hosts comes in any order. So calls take turns: one channel is for reduce-scatters, one
// for allgathers, and in each the operations of a call are started after all those of the calls
// before it.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/host_map.h"
#include "collectives/algorithms/turns.h"
#include "collectives/shm/arrival_watch.h"
#include "collectives/shm/channel.h"

namespace rueda::algorithms {

class Hierarchy {
 public:
  // local: the channels of this rank's host, in the order of map.local_members(); no arenas where
  // this rank is alone there. first_channel: it and the next. wire: what f32 sums travel as between
  // hosts. exchange: the one for all sizes.
  Hierarchy(const direct::Group& group, HostMap map, const shm::ChannelGroup& local,
            size_t first_channel, std::optional<DType> wire, std::optional<Exchange> exchange);

  // Several hosts with several ranks: more than allreduce gains by levels.
  bool has_levels() const { return map_.has_levels(); }
  // Of an allreduce, reducescatter, allgather, broadcast or barrier.
  Script script(const CollectiveDesc& desc, std::span<const Part> tensors);

  bool progress();
  bool idle() const;
  void abandon();
  void begin_generation(uint64_t generation);
  void end_generation();
  shm::Channel::Bytes channel_totals() const;
  // Hears, by group ranks, of the ranks of this host that have not begun a collective that begins
  // inside the host: for whom a call's first operation waits. When a rank posts the ones behind it
  // hangs on the exchange between hosts, which makes nobody late.
  void watch(shm::ArrivalWatch* watch);

  // ---- for the calls
  const direct::Group& group() const { return group_; }
  const HostMap& map() const { return map_; }
  std::optional<DType> wire_of(DType dtype, ReduceOp op) const;
  Exchange exchange_of(int64_t bytes) const {
    return exchange_.value_or(choose_exchange(map_.hosts(), bytes));
  }
  // Null: alone on this host.
  shm::Channel* scatter_channel() const { return scatter_.get(); }
  shm::Channel* gather_channel() const { return gather_.get(); }
  Turns& scatter_turns() { return scatter_turns_; }
  Turns& gather_turns() { return gather_turns_; }
  uint64_t next_call() { return calls_++; }

 private:
  // Of the channel's ranks, the group's.
  class Arrivals final : public shm::ArrivalWatch {
   public:
    Arrivals(const HostMap* map, shm::ArrivalWatch* watch) : map_(map), watch_(watch) {}
    void missing(Rank local) override {
      watch_->missing(map_->local_members()[static_cast<size_t>(local)]);
    }
    void complete() override { watch_->complete(); }

   private:
    const HostMap* map_;
    shm::ArrivalWatch* watch_;
  };

  const direct::Group& group_;
  HostMap map_;
  std::optional<DType> wire_;
  std::optional<Exchange> exchange_;  // asked for; else by size
  std::unique_ptr<shm::Channel> scatter_;
  std::unique_ptr<shm::Channel> gather_;
  std::optional<Arrivals> arrivals_;
  Turns scatter_turns_;
  Turns gather_turns_;
  uint64_t calls_ = 0;
};

}  // namespace rueda::algorithms

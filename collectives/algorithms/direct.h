// Direct algorithms: collectives by messages between all pairs, over any transport (tcp, rings,
// MPI, mixtures).
//
//   reduce-scatter  every rank sends each shard of its vector to the shard's owner, who combines
//                   them in rank order: P-1 messages of N/P each, so (P-1)/P*N bytes per rank, the
//                   bound; one step of latency
//   allreduce       reduce-scatter, then every owner sends its result to all: 2(P-1)/P*N bytes, two
//                   steps, in segments so that the second step overlaps the first
//   allgather       every rank sends its block to all
//   alltoall        every rank sends each block to its addressee
//   broadcast       small: the root sends to all. Large: a pipelined chain root, root+1, ..., N
//                   bytes per rank and connection
//
// The rings and trees of the textbooks send the same bytes but combine in another order for every
// shard; here each element is combined in rank order on its owner, so results are the same bits as
// through shared memory.
//
// All are scripts: they never block. group, desc and tensors outlive them.
#pragma once

#include <span>
#include <vector>

#include "collectives/desc/collective.h"
#include "collectives/desc/script.h"
#include "collectives/desc/transfers.h"
#include "collectives/transport/transport.h"

namespace rueda::algorithms::direct {

// The ranks that take part. members[i] is the transport's rank of group rank i.
struct Group {
  transport::Transport* transport = nullptr;  // borrowed
  std::vector<Rank> members;
  Rank rank = 0;  // this rank's index in members
  Rank size() const { return static_cast<Rank>(members.size()); }
  Rank member(Rank of_group) const { return members[static_cast<size_t>(of_group)]; }
};

// Bytes of one segment: long enough to hide a round trip, short enough for the caches.
inline constexpr int64_t kSegmentBytes = 512 << 10;

Script allreduce(const Group& group, const CollectiveDesc& desc, std::span<const Part> tensors);
Script reduce_scatter(const Group& group, const CollectiveDesc& desc,
                      std::span<const Part> tensors);
Script allgather(const Group& group, const CollectiveDesc& desc, std::span<const Part> tensors);
Script broadcast(const Group& group, const CollectiveDesc& desc, std::span<const Part> tensors);
Script alltoall(const Group& group, const CollectiveDesc& desc, std::span<const Part> tensors);
// Nothing but the meeting (meeting.h).
Script barrier(const Group& group, const CollectiveDesc& desc, std::span<const Part> tensors);

}  // namespace rueda::algorithms::direct

// Direct algorithms: collectives by messages between all pairs, over any Transport (tcp, inproc,
// mixtures).
//
// reduce-scatter  every rank sends each shard of its vector to the shard's owner, who combines them
// in rank order:
//                 P-1 messages of N/P each, so (P-1)/P*N bytes per rank, the bound; one step of
//                 latency.
// allreduce       reduce-scatter, then every owner sends its result to all: 2(P-1)/P*N bytes, two
// steps, in segments so
//                 that the second step overlaps the first.
// allgather       every rank sends its block to all. alltoall: every rank sends each block to its
// addressee. broadcast       small: the root sends to all. Large: a pipelined chain root, root+1,
// ..., N bytes per rank and link.
//
// The rings and trees of the textbooks send the same bytes but combine in another order for every
// shard; here each element is combined in rank order on its owner, so results are the same bits as
// through shared memory.
//
// All are Tasks: they never block. Arguments are copied or borrowed until the task is done, as said
// at each.
#pragma once

#include <vector>

#include "collectives/desc/parts.h"
#include "collectives/desc/scaling.h"
#include "collectives/desc/task.h"
#include "collectives/transport/transport.h"

namespace rueda::algorithms::direct {

// The ranks that take part and the tag space of this call. members[i] is the transport's rank of
// group rank i.
struct Group {
  transport::Transport* transport = nullptr;  // borrowed
  std::vector<Rank> members;
  Rank rank = 0;           // this rank's index in members
  transport::Tag tag = 0;  // low 8 bits free for the algorithm
  Rank size() const { return static_cast<Rank>(members.size()); }
};

// Bytes of one segment: long enough to hide a round trip, short enough for the caches.
inline constexpr int64_t kSegmentBytes = 512 << 10;

// Parts: borrowed tensors of one dtype, the same counts on all ranks.
Task allreduce(Group group, PartList list, DType dtype, ReduceOp op, Scaling scaling);

// in: whole vector of sum(counts) elements; out: counts[rank] elements, this rank's shard (may not
// overlap in).
Task reduce_scatter(Group group, const std::byte* in, std::byte* out, std::vector<int64_t> counts,
                    DType dtype, ReduceOp op, Scaling scaling);

Task allgather(Group group, std::vector<GatherPart> parts);

// Several parts are one message.
Task broadcast(Group group, Rank root, std::vector<BroadcastPart> parts);

// Blocks lie end to end in rank order; send_bytes[i] goes to rank i, recv_bytes[i] comes from it.
Task alltoall(Group group, const std::byte* in, std::byte* out, std::vector<int64_t> send_bytes,
              std::vector<int64_t> recv_bytes);

}  // namespace rueda::algorithms::direct

// Communicator: the collectives over one process set's ranks, each a Task.
//
// Threads:   one, the coordinator. Order: every rank starts the same collectives in the same order;
// several may be under
//            way at once. A task is driven by its owner's advance() together with progress().
// Ownership: tensors are borrowed until their task is done. After an error every output is
// unspecified. Failure:   a task that fails because of a peer leaves the communicator unusable:
// abandon() it. End:       abandon() drops what is under way; afterwards no caller memory is
// touched by this rank.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/desc/parts.h"
#include "collectives/desc/scaling.h"
#include "collectives/desc/stage_times.h"
#include "collectives/desc/task.h"

namespace rueda {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual Rank rank() const = 0;
  virtual Rank size() const = 0;

  virtual Task allreduce(std::vector<Part> parts, DType dtype, ReduceOp op,
                         const Scaling& scaling) = 0;
  // counts: elements of every rank's shard. `out` holds this rank's; it may not overlap `in`.
  virtual Task reducescatter(const std::byte* in, std::byte* out, std::vector<int64_t> counts,
                             DType dtype, ReduceOp op, const Scaling& scaling) = 0;
  virtual Task allgather(std::vector<GatherPart> parts) = 0;
  virtual Task broadcast(Rank root, std::vector<BroadcastPart> parts) = 0;
  // bytes: ranks x ranks, from row to column; blocks lie end to end in rank order.
  virtual Task alltoall(const std::byte* in, std::byte* out, std::vector<int64_t> bytes) = 0;

  // For the next call alone: filled in while it runs, as far as this communicator can tell.
  virtual void time_next(StageTimes* /*times*/) {}

  // Moves what does not need a task's attention. True if anything moved.
  virtual bool progress() = 0;
  virtual void abandon() = 0;
};

}  // namespace rueda

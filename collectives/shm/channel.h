// Channel: collectives inside a host through shared memory, one after the other.
//
// Jobs run in the order of their start, which must be the same on all ranks of the group; a few are
// under way at once. Channels share nothing, so a channel that waits holds nothing that another
// needs.
//
// A job is published by its *post*, a cell of shared memory that only its owner writes. Small jobs
// carry their data in it; the post of a large one says where each of its tensors lies: in the heap
// that the peers map, in private memory, or nowhere.
//
//   inline   data travels in the post's cache lines, each with its own sequence number; every rank
//            reads all posts and combines for itself. One exchange of lines.
//   buffers  chunk by chunk through buffers that stay in cache; the own shard is read straight from
//            the tensor ("half copy").
//   in place a tensor that lies in the heap on every rank: each rank combines its shard straight
//   from
//            everybody's tensors and writes it into everybody's results. Two flags, no copy.
//   read_peer     private memory of peers read by the kernel (process_vm_readv), where it allows that.
//
// Which protocol a tensor takes is a function of the job and of all ranks' posts, so all ranks
// choose alike. No protocol changes a bit of the result: each element is combined in rank order.
//
// Ownership: jobs are the caller's and stay where they are until done or withdrawn. start and
//            progress allocate nothing.
// Threads:   one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/desc/parts.h"
#include "collectives/desc/scaling.h"
#include "collectives/desc/stage_times.h"
#include "collectives/host/arena.h"
#include "collectives/host/doorbell.h"
#include "collectives/shm/arrival_watch.h"

namespace rueda::shm {

// A rank's heap as it is mapped here; base null where there is none.
struct HeapView {
  std::byte* base = nullptr;
  size_t bytes = 0;
};

struct ChannelGroup {
  Rank rank = 0;  // this rank's index in the vectors
  std::vector<std::shared_ptr<host::Arena>> arenas;
  std::vector<HeapView> heaps;        // empty: no heaps
  std::vector<host::Ringer> ringers;  // wake a rank that waits for a channel
};

// The protocol for large tensors in private memory. Agreed by all ranks before the job starts.
enum class Protocol : uint8_t { kStaged = 0, kCma = 1 };

// One collective. Fill in before start(); a job that is done may be started again with other
// memory.
struct Job {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DType dtype = DType::kUInt8;  // kUInt8 where bytes are only moved
  ReduceOp op = ReduceOp::kSum;
  Scaling scaling;
  Rank root = 0;  // broadcast
  Protocol protocol = Protocol::kStaged;
  // allreduce, broadcast: the batch's tensors (counts equal on all ranks; broadcast counts bytes).
  // reducescatter: one part; in has sum(counts) elements, out counts[rank].
  // allgather: parts[i].in is this rank's block, out has room for all blocks in rank order.
  // alltoall: one part; blocks lie end to end in rank order.
  std::vector<Part> parts;
  // reducescatter: elements of each rank's shard. allgather: parts x ranks, bytes of each block
  // (part-major). alltoall: ranks x ranks, bytes from row to column.
  std::vector<int64_t> counts;

  bool done = false;  // set by the channel
  StageTimes* times =
      nullptr;  // filled in by the channel, if somebody asks; cleared by them before start

  struct Progress;  // the channel's own
  std::unique_ptr<Progress> progress;
  Job();
  ~Job();
};

class Channel {
 public:
  // number: which of the arena's channels.
  Channel(ChannelGroup group, size_t number);
  ~Channel();

  // Allocates what the job needs later (once, or again after parts or counts changed).
  void prepare(Job* job);
  // Takes a prepared job; it is entered at once if there is room, else by a later progress().
  // Sleeping peers are woken by the next progress().
  void start(Job* job);
  // Does what can be done now without waiting, about 1 MB at most. True if anything moved. Before a
  // rank sleeps, it must have given false.
  bool progress();
  // No job is under way.
  bool idle() const;
  // Why the channel does nothing any more: a peer's post makes no sense, or its memory cannot be
  // read.
  const Status& failure() const;

  // Who it waits for. Borrowed; null: nobody listens.
  void watch(ArrivalWatch* watch);

  // ---- for the step plan
  // Sequence numbers start afresh; all ranks have finished everything before.
  void begin_generation(uint64_t generation);
  // Jobs of this generation that peers can see, and that are done here.
  uint64_t entered() const;
  uint64_t finished() const;
  // Nothing more becomes visible.
  void stop_entering();
  // Jobs of this generation from this number on do not run; drops them. Nothing of theirs has been
  // written to a tensor. Those before go on. Some rank must not have entered `first`.
  void withdraw(uint64_t first);

  // Drops all jobs: their memory is not touched any more by this rank. The channel's end.
  void abandon();

  // Told of each large job that is done here, had the channel for itself and more than one protocol
  // to go (not all in place): its bytes, and how long it took from when all ranks had entered it.
  using Measured = std::function<void(const Job& job, int64_t bytes, int64_t ns)>;
  void on_measured(Measured measured);

  // Of the tensors of jobs that are done here; of gathered ones the whole result counts.
  struct Bytes {
    uint64_t total = 0;
    uint64_t in_place = 0;  // of these, straight from and to heaps
    uint64_t cma = 0;       // of these, read by the kernel
  };
  const Bytes& bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rueda::shm

// WindowPipeline: allreduce inside a host, through windows of shared memory that stay in cache.
//
// Every rank owns `windows` windows in its arena. The batch is one long vector, cut into chunks of
// a window's size; chunk number s (counted over all batches, for ever) uses window s mod windows on
// every rank, and passes three stages:
//
//   pack     copy (and prescale) my elements of the chunk into my window              then packed
//   = s + 1 reduce   when all ranks have packed s: combine my share of the chunk straight
//            from everybody's window, in rank order, into my own window               then reduced
//            = s + 1
//   unpack   when all ranks have reduced s: copy all shares out to the results        then unpacked
//   = s + 1
//
// A window is packed again only when everybody has unpacked the chunk that was in it. The three
// counters are the only synchronisation: one writer each, release stores, acquire loads. While
// ranks wait for one stage of a chunk they work on other stages of its neighbours. Tiny chunks skip
// a round: every rank combines the whole chunk for itself.
//
// Bits: each element is combined in rank order, whatever the chunk, share or batch it is in.
// Cost: every input is read once from and every output written once to its own memory; (2P+1)N more
// bytes in cache. Threads: one (the coordinator). Ownership: shares the arenas, borrows a job's
// tensors until it is done.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "collectives/communicator/parts.h"
#include "collectives/communicator/scaling.h"
#include "collectives/transport/arena.h"

namespace rueda::communicator {

// One fused allreduce. done is set by the pipeline.
struct AllreduceJob {
  AllreduceJob(PartList l, DType d, ReduceOp o, Scaling s)
      : list(std::move(l)), dtype(d), op(o), scaling(s) {}
  PartList list;
  DType dtype;
  ReduceOp op;
  Scaling scaling;
  bool done = false;
};

class WindowPipeline {
 public:
  // Combined bytes of all ranks' inputs up to which every rank reduces the whole chunk for itself.
  static constexpr int64_t kOneShotBytes = 16 << 10;

  // arenas and ringers by rank of the group; the own ringer is not used. All arenas have the same
  // layout.
  WindowPipeline(Rank rank, std::vector<std::shared_ptr<transport::Arena>> arenas,
                 std::vector<transport::Ringer> ringers);

  // Jobs run in the order of their start, which must be the same on all ranks. The job is shared
  // with the caller, who watches `done`.
  void start(std::shared_ptr<AllreduceJob> job);
  // Does what can be done now. True if anything moved.
  bool progress();
  // Drops all jobs: their memory is not touched any more.
  void abandon() { jobs_.clear(); }
  uint64_t bytes_reduced() const { return bytes_; }

 private:
  struct Running {
    std::shared_ptr<AllreduceJob> job;
    uint64_t first = 0;  // number of its first chunk
    uint64_t last = 0;   // one past its last
    int64_t chunk_elements = 0;
  };
  struct Chunk {
    const Running* running;
    int64_t begin;  // elements
    int64_t count;
    bool one_shot;
    std::byte* window(const transport::Arena& arena) const { return arena.window(slot); }
    size_t slot;
  };

  Chunk chunk(uint64_t number) const;
  uint64_t lowest(std::atomic<uint64_t> transport::WindowControl::*counter) const;
  bool pack_next();
  bool reduce_next();
  bool unpack_next();
  void post(std::atomic<uint64_t> transport::WindowControl::*counter, uint64_t value);

  Rank rank_;
  std::vector<std::shared_ptr<transport::Arena>> arenas_;
  std::vector<transport::Ringer> ringers_;
  size_t windows_;
  int64_t chunk_bytes_;
  std::deque<Running> jobs_;
  uint64_t end_ = 0;     // chunks of all jobs started so far
  uint64_t packed_ = 0;  // chunks this rank has finished, by stage
  uint64_t reduced_ = 0;
  uint64_t unpacked_ = 0;
  std::vector<std::byte> scratch_;  // result of a one-shot chunk
  uint64_t bytes_ = 0;
};

}  // namespace rueda::communicator

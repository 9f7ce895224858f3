// Channel: collectives inside a host through shared memory, one after the other.
//
// Operations run in the order of their start, which must be the same on all ranks of the group; a
// few are under way at once. Channels share nothing, so a channel that waits holds nothing that
// another needs.
//
// An operation is published by its *post*, a cell of shared memory that only its owner writes. A
// small one carries its data in it; the post of a large one says where each of its tensors lies: in
// the heap that the peers map, in private memory, or nowhere.
//
//   inline     data travels in the post's cache lines, each with its own sequence number; every
//              rank reads all posts and combines for itself. One exchange of lines.
//   staged     chunk by chunk through staging buffers that stay in cache; the own shard is read
//              straight from the tensor
//   in place   a tensor that lies in the heap on every rank: each rank combines its shard straight
//              from everybody's tensors and writes it into everybody's results. Two flags, no copy.
//   CMA        private memory of peers read by the kernel (cross-memory attach: process_vm_readv),
//              where it allows that
//
// Which protocol a tensor takes is a function of the description and of all ranks' posts, so all
// ranks choose alike. No protocol changes a bit of the result: each element is combined in rank
// order.
//
// Ownership: operations are the caller's and outlive their run, or the channel is abandoned or its
//            generation ended before. start and progress allocate nothing.
// Threads:   one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/desc/collective.h"
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
  // Which of each arena's channels is the group's first. Empty: the arena's first, on all ranks.
  std::vector<size_t> first_channels;
  std::vector<HeapView> heaps;        // empty: no heaps
  std::vector<host::Ringer> ringers;  // wake a rank that waits for a channel
};

class Channel;

// One collective in a channel. A barrier is one of nothing.
class ChannelOp final : public Collective {
 public:
  // Allocates what it needs later. channel: borrowed.
  ChannelOp(Channel* channel, CollectiveDesc desc);
  ~ChannelOp() override;

  // Taken by the channel: posted at once if there is room, else by a later progress(). Sleeping
  // peers are woken by the next progress().
  void start(const CallContext& context) override;
  // Whether the channel's watch hears who has not posted it: not where that depends on more than
  // the rank's having begun. From the next start on; at first it does.
  void set_watched(bool watched) { watched_ = watched; }
  // The channel moves it; a channel that has failed ends it.
  bool advance() override;

  // It may need the channels' buffers; what is not large travels in posts alone.
  bool is_large() const;

  struct Progress;  // the channel's own
  Progress& progress() const { return *progress_; }

 private:
  friend class Channel;
  Channel* channel_;
  bool watched_ = true;
  StageTimes* times_ = nullptr;  // filled in by the channel, if somebody asks
  std::unique_ptr<Progress> progress_;
};

class Channel {
 public:
  // number: which of the group's channels.
  Channel(ChannelGroup group, size_t number);
  ~Channel();

  // Does what can be done now without waiting, about 1 MB at most. True if anything moved. Before a
  // rank sleeps, it must have given false.
  bool progress();
  // No operation is under way.
  bool idle() const;
  // Of this generation: those that peers can see, and those that are done here.
  uint64_t posted() const;
  uint64_t finished() const;
  // Why the channel does nothing any more: a peer's post makes no sense, or its memory cannot be
  // read.
  const Status& failure() const;

  // Who it waits for, in operations that are watched. Borrowed; null: nobody listens.
  void watch(ArrivalWatch* watch);

  // ---- step plans
  // Sequence numbers start afresh; all ranks have finished everything before.
  void begin_generation(uint64_t generation);
  // Forgets what is under way: some rank will never start it, so no tensor that another start needs
  // has been written. Nothing runs here before the next generation.
  void end_generation();

  // Drops all operations: their memory is not touched any more by this rank. The channel's end.
  void abandon();

  // Told of each large operation that is done here, had the channel for itself and more than one
  // protocol to choose from (not all in place): the bytes of its input on this rank, and how long
  // it took from when all ranks had posted it.
  using Measured = std::function<void(const CollectiveDesc& desc, int64_t bytes, int64_t ns)>;
  void on_measured(Measured measured);

  // Of the tensors of operations that are done here; of gathered ones the whole result counts.
  struct Bytes {
    uint64_t total = 0;
    uint64_t in_place = 0;  // of these, straight from and to heaps
    uint64_t cma = 0;       // of these, read by the kernel

    Bytes& operator+=(const Bytes& other) {
      total += other.total;
      in_place += other.in_place;
      cma += other.cma;
      return *this;
    }
  };
  const Bytes& bytes() const;

 private:
  friend class ChannelOp;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rueda::shm

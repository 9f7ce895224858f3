// LateRanks: turns what this rank sees of the others' arrivals into incidents for Stragglers.
//
//   step plan    the rank whose post is missing while this rank's threads sleep   (each channel)
//   negotiated   the rank whose announcement decided a tensor                     (the root)
//
// What counts is the time for which a thread of this rank sleeps until that rank comes: what comes
// late while everybody computes costs nothing. The root cannot see others sleep: when it is itself
// the last, all of the lateness counts. A process set's root names every member but itself in
// planned steps; there the next one does it.
// Threads: who holds the progress lock. Ownership: borrows the clock.
#pragma once

#include <functional>
#include <vector>

#include "collectives/shm/arrival_watch.h"
#include "runtime/engine/blocked_clock.h"
#include "runtime/engine/stragglers.h"

namespace rueda::engine {

class LateRanks {
 public:
  using Nanos = Stragglers::Nanos;
  using Name = std::function<void(const Stragglers::Finding&)>;

  // size: of the job. name: told of ranks that should be named, only where it is this rank's turn
  // to speak of them.
  LateRanks(Rank size, const BlockedClock* blocked, Name name);

  // What one process set sees of its members, by their places in it. Borrows the LateRanks.
  class Group final : public shm::ArrivalWatch {
   public:
    // ranks: the members' in the job. place: this rank's among them.
    Group(LateRanks* late, std::vector<Rank> ranks, Rank place);

    // The step plan's channel.
    void missing(Rank place, bool again) override;
    void complete() override;
    // The root: the last member has submitted a tensor; the one before came at `before`.
    void decided(Rank last, Nanos before, Nanos now);

   private:
    LateRanks* late_;
    std::vector<Rank> ranks_;
    Rank place_;
    Rank missing_ = 0;
    bool again_ = false;
    Nanos since_ = 0;  // 0: nobody slept when it began
  };

  std::vector<wire::Waited> totals() const { return stragglers_.totals(); }

 private:
  void late(Rank rank, Nanos cost, Nanos now, bool again, bool speaks);

  const BlockedClock* blocked_;
  Name name_;
  Stragglers stragglers_;
  Nanos seen_until_ = 0;  // negotiated: no moment counts twice
};

}  // namespace rueda::engine

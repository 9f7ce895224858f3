// LateRanks: turns what this rank sees of the others' arrivals into incidents for Stragglers.
//
//   step plan    the rank whose entry word is missing while this rank's threads sleep   (each lane)
//   negotiated   the rank whose request decided a tensor                                (the root)
//
// What counts is the time for which a thread of this rank sleeps until that rank comes: what comes late
// while everybody computes costs nothing. The root cannot see others sleep: when it is itself the last,
// all of the lateness counts.
// The root names everybody but itself in planned steps; there the next rank does it.
// Threads: who has the baton. Ownership: borrows the clock.
#pragma once

#include <functional>

#include "collectives/communicator/arrival_watch.h"
#include "runtime/blocked_clock.h"
#include "runtime/stragglers.h"

namespace rueda::runtime {

class LateRanks {
 public:
  using Nanos = Stragglers::Nanos;
  using Name = std::function<void(const Stragglers::Finding&)>;

  // name: told of ranks that should be named, only where it is this rank's turn to speak of them.
  LateRanks(Rank rank, Rank size, const BlockedClock* blocked, Name name);

  // What a lane tells. One for each lane; ranks are the lane's, which are those of the job.
  class Lane final : public communicator::ArrivalWatch {
   public:
    explicit Lane(LateRanks* late) : late_(late) {}
    void missing(Rank rank, bool again) override;
    void complete() override;

   private:
    LateRanks* late_;
    Rank rank_ = 0;
    bool again_ = false;
    Nanos since_ = 0;  // 0: nobody slept when it began
  };
  Lane* lane(size_t number) { return &lanes_[number]; }

  // The root: the last rank has submitted a tensor; the one before came at `before`.
  void decided(Rank last, Nanos before, Nanos now);

  std::vector<wire::Waited> totals() const { return stragglers_.totals(); }

 private:
  void late(Rank rank, Nanos cost, Nanos now, bool again, bool speaks);

  Rank rank_;
  const BlockedClock* blocked_;
  Name name_;
  Stragglers stragglers_;
  Lane lanes_[2];
  Nanos seen_until_ = 0;  // negotiated: no moment counts twice
};

}  // namespace rueda::runtime

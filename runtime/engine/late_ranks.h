// LateRanks: turns what this rank sees of the others' arrivals into costs for Stragglers, and says
// once of each slow rank that it is.
//
//   step plan    the rank of this host whose post is missing while this rank's threads sleep
//   group        the same, of the entry of a call
//   negotiated   the rank whose announcement decided a tensor                     (the root)
//
// What counts is the time for which a thread of this rank sleeps until that rank comes: what comes
// late while everybody computes costs nothing. The root cannot see others sleep: when it is itself
// the last, all of the lateness counts. No moment counts twice.
//
// Where ranks share memory each publishes its Pace: how long it has slept itself in step plans,
// which says who waits for whom; and whether it has been named, so that one rank of the job does
// that once. Where there is none (between hosts) the root's own lateness has to do, and each
// process set's root speaks for itself. In a step plan nobody sees a rank of another host be late:
// its own host's ranks do.
//
// In planned steps the first of a process set's ranks on a host names the others there; the next
// one names it.
// Threads: who holds the progress lock. Ownership: borrows what it is made of.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "collectives/host/arena.h"
#include "collectives/shm/arrival_watch.h"
#include "runtime/engine/blocked_clock.h"
#include "runtime/engine/disk_use.h"
#include "runtime/engine/stragglers.h"

namespace rueda::engine {

class LateRanks {
 public:
  using Nanos = Stragglers::Nanos;

  struct Around {
    Rank rank = 0;
    // By rank of the job; null: on another host.
    std::vector<host::Pace*> paces;
    // Of a rank of this host, so far. Asked once in ten seconds, of ranks that somebody sleeps for.
    std::function<std::optional<DiskUse>(Rank)> disk;
    const BlockedClock* blocked = nullptr;
    // The monotonic clock, as BlockedClock's.
    std::function<Nanos()> now;
    // A rank is slow, and it is this one's turn to say so.
    std::function<void(const Stragglers::Finding&)> name;
    // The rank that this one's threads have waited for longest so far.
    std::function<void(const wire::Waited&)> worst;
    // Its threads have slept so long until that rank came.
    std::function<void(Rank, Nanos)> late;
  };
  // The job begins.
  explicit LateRanks(Around around);

  // What one process set sees of its members, by their places in it. Borrows the LateRanks.
  class Group final : public shm::ArrivalWatch {
   public:
    // ranks: the members' in the job. place: this rank's among them.
    Group(LateRanks* late, std::vector<Rank> ranks, Rank place);

    // The step plan's channel; an ordered group's.
    void missing(Rank place) override;
    void complete() override;
    // The root: the last member has submitted a tensor; the one before came at `before`.
    void decided(Rank last, Nanos before, Nanos now);

   private:
    bool speaks_of(Rank place) const;

    LateRanks* late_;
    std::vector<Rank> ranks_;
    Rank place_;
    Rank missing_ = 0;
    Nanos since_ = 0;
  };

  std::vector<wire::Waited> totals() const { return stragglers_.totals(); }

 private:
  host::Pace* pace_of(Rank rank) const { return around_.paces[static_cast<size_t>(rank)]; }
  void late(Rank rank, Nanos cost, Nanos now, bool speaks);
  // Looks what a rank of this host does instead, once in a window.
  void look_at(Rank rank, Nanos now);
  // That, of the time since it was looked at last but one: one to two windows; less of a rank that
  // has just begun to be late.
  void explain(Stragglers::Finding* finding, Nanos now);

  const Around around_;
  Stragglers stragglers_;
  std::vector<bool> named_;  // by this rank, or seen to be
  Nanos seen_until_ = 0;
  struct Look {
    Nanos at = 0, data = 0;
    DiskUse disk, own_disk;
  };
  Look look(Rank rank, Nanos now) const;
  struct Looks {
    Look older, newer;
  };
  std::vector<Looks> looks_;  // by rank
};

}  // namespace rueda::engine

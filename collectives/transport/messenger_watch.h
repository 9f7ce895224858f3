// MessengerWatch: who gives signs of life, decided from what was heard and when.
//
//   heard <--any byte-- silent --suspect_after--> suspect --dead_after--> dead
//
// Any byte counts, so a slow link with data on it is never suspected; a peer that has nothing to
// say sends a beat every beat_every. Time in which this process itself did not run (stopped, or
// starved) does not count against its peers. Pure: time is given, nothing is sent here.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "collectives/base/types.h"

namespace rueda::transport {

struct WatchTimes {
  std::chrono::nanoseconds dead_after{};  // zero: nobody is watched
  std::chrono::nanoseconds suspect_after() const { return dead_after / 5; }
  std::chrono::nanoseconds beat_every() const { return dead_after / 16; }
};

class MessengerWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  MessengerWatch(WatchTimes times, size_t peers, Time now);

  void heard(Rank peer) { peers_[static_cast<size_t>(peer)].heard = true; }
  void said(Rank peer) { peers_[static_cast<size_t>(peer)].said = true; }

  struct Verdicts {
    std::vector<Rank> beats;       // to whom nothing was said since the last look
    std::vector<Rank> suspects;    // newly
    std::vector<Rank> recovered;   // no longer suspect
    std::vector<Rank> dead;
  };
  // To be called every beat_every, after everything that has arrived was read. watched: by peer.
  Verdicts look(Time now, const std::vector<bool>& watched);
  std::chrono::nanoseconds silence(Rank peer) const {
    return peers_[static_cast<size_t>(peer)].silence;
  }
  const WatchTimes& times() const { return times_; }

 private:
  struct Peer {
    bool heard = false;
    bool said = false;
    bool suspect = false;
    std::chrono::nanoseconds silence{};
  };
  WatchTimes times_;
  Time last_look_;
  std::vector<Peer> peers_;
};

}  // namespace rueda::transport

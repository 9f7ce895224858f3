// PeerWatch: who gives signs of life, decided from what was heard and when.
//
//   heard <--any byte-- silent --suspect_after--> suspect --dead_after--> dead
//
// Any byte counts, so a slow connection with data on it is never suspected; a peer that has nothing
// to say sends a beat every beat_every. What arrives from a host, for whichever rank of this host,
// shows that the network between lives: a peer of that host has twice the time, since its own signs
// may be stuck in a queue behind the others' data. Time in which this process itself did not run
// (stopped, or starved) does not count against its peers. Pure: time is given, nothing is sent
// here.
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
  // When something comes from its host.
  std::chrono::nanoseconds dead_alone_after() const { return 2 * dead_after; }
};

class PeerWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // host_of: by peer, a number from 0.
  PeerWatch(WatchTimes times, std::vector<int> host_of, Time now);

  void heard(Rank peer) { peers_[static_cast<size_t>(peer)].heard = true; }
  void said(Rank peer) { peers_[static_cast<size_t>(peer)].said = true; }

  struct Verdicts {
    std::vector<Rank> beats;      // to whom nothing was said since the last look
    std::vector<Rank> suspects;   // newly
    std::vector<Rank> recovered;  // no longer suspect
    std::vector<Rank> dead;
  };
  // By host: whether this rank has heard from there since the last look. Until it is asked again.
  const std::vector<bool>& hosts_heard();
  // To be called every beat_every, after everything that has arrived was read. watched: by peer.
  // hosts_heard: by host, whether any rank of this host has heard from there since the last look.
  // What it returns is good until the next look.
  const Verdicts& look(Time now, const std::vector<bool>& watched,
                       const std::vector<bool>& hosts_heard);
  // Others of its host are not silent.
  bool is_alone(Rank peer) const {
    return peers_[static_cast<size_t>(peer)].network_silence < times_.dead_after;
  }
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
    std::chrono::nanoseconds network_silence{};  // of its host
  };
  WatchTimes times_;
  std::vector<int> host_of_;
  Time last_look_;
  std::vector<Peer> peers_;
  std::vector<bool> heard_;  // by host
  Verdicts verdicts_;
};

}  // namespace rueda::transport

#include "collectives/transport/peer_watch.h"

#include <algorithm>

namespace rueda::transport {

PeerWatch::PeerWatch(WatchTimes times, std::vector<int> host_of, Time now)
    : times_(times), host_of_(std::move(host_of)), last_look_(now), peers_(host_of_.size()) {
  const auto last = std::max_element(host_of_.begin(), host_of_.end());
  heard_.resize(last == host_of_.end() ? 0 : static_cast<size_t>(*last) + 1);
  for (auto* ranks : {&verdicts_.beats, &verdicts_.suspects, &verdicts_.recovered, &verdicts_.dead})
    ranks->reserve(peers_.size());
}

const std::vector<bool>& PeerWatch::hosts_heard() {
  std::fill(heard_.begin(), heard_.end(), false);
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].heard) heard_[static_cast<size_t>(host_of_[i])] = true;
  }
  return heard_;
}

const PeerWatch::Verdicts& PeerWatch::look(Time now, const std::vector<bool>& watched,
                                           const std::vector<bool>& hosts_heard) {
  Verdicts& verdicts = verdicts_;
  for (auto* ranks : {&verdicts.beats, &verdicts.suspects, &verdicts.recovered, &verdicts.dead})
    ranks->clear();
  // Looks come regularly. A longer pause was this process's own: of it only one beat counts.
  const auto passed = std::min<std::chrono::nanoseconds>(now - last_look_, 2 * times_.beat_every());
  last_look_ = now;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!watched[i]) continue;
    Peer& peer = peers_[i];
    const auto rank = static_cast<Rank>(i);
    if (!peer.said) verdicts.beats.push_back(rank);
    peer.said = false;
    const bool network = peer.heard || hosts_heard[static_cast<size_t>(host_of_[i])];
    peer.silence = peer.heard ? std::chrono::nanoseconds(0) : peer.silence + passed;
    peer.network_silence = network ? std::chrono::nanoseconds(0) : peer.network_silence + passed;
    if (peer.heard && peer.suspect) {
      peer.suspect = false;
      verdicts.recovered.push_back(rank);
    }
    peer.heard = false;
    if (peer.network_silence >= times_.dead_after || peer.silence >= times_.dead_alone_after()) {
      verdicts.dead.push_back(rank);
    } else if (peer.silence >= times_.suspect_after() && !peer.suspect) {
      peer.suspect = true;
      verdicts.suspects.push_back(rank);
    }
  }
  return verdicts;
}

}  // namespace rueda::transport

#include "collectives/transport/messenger_watch.h"

#include <algorithm>

namespace rueda::transport {

MessengerWatch::MessengerWatch(WatchTimes times, size_t peers, Time now)
    : times_(times), last_look_(now), peers_(peers) {}

MessengerWatch::Verdicts MessengerWatch::look(Time now, const std::vector<bool>& watched) {
  Verdicts verdicts;
  // Looks come regularly. A longer pause was this process's own: of it only one beat counts.
  const auto passed = std::min<std::chrono::nanoseconds>(now - last_look_, 2 * times_.beat_every());
  last_look_ = now;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!watched[i]) continue;
    Peer& peer = peers_[i];
    const auto rank = static_cast<Rank>(i);
    if (!peer.said) verdicts.beats.push_back(rank);
    peer.said = false;
    peer.silence = peer.heard ? std::chrono::nanoseconds(0) : peer.silence + passed;
    if (peer.heard && peer.suspect) {
      peer.suspect = false;
      verdicts.recovered.push_back(rank);
    }
    peer.heard = false;
    if (peer.silence >= times_.dead_after) {
      verdicts.dead.push_back(rank);
    } else if (peer.silence >= times_.suspect_after() && !peer.suspect) {
      peer.suspect = true;
      verdicts.suspects.push_back(rank);
    }
  }
  return verdicts;
}

}  // namespace rueda::transport

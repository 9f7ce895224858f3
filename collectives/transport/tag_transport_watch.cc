// The watch's timer, beats and verdicts.
#include <sys/timerfd.h>

#include <unistd.h>
#include <cerrno>
#include <cstdio>

#include "collectives/base/log.h"
#include "collectives/transport/tag_transport.h"

namespace rueda::transport {
namespace {

std::string seconds(std::chrono::nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

Status TagTransport::watch_peers(std::chrono::nanoseconds dead_after) {
  bool any = false;
  for (const PeerState& peer_state : peers_)
    any = any || (peer_state.connection != nullptr && peer_state.connection->crosses_hosts());
  if (!any || dead_after.count() <= 0) return {};
  for (int rank = static_cast<int>(host_of_.size()); rank < static_cast<int>(peers_.size()); ++rank)
    host_of_.push_back(rank);
  watch_.emplace(WatchTimes{dead_after}, host_of_, std::chrono::steady_clock::now());
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return errno_status("cannot create a timer", errno);
  itimerspec times{};
  const auto beat = watch_->times().beat_every();
  times.it_interval.tv_sec = beat / std::chrono::seconds(1);
  times.it_interval.tv_nsec = (beat % std::chrono::seconds(1)).count();
  times.it_value = times.it_interval;
  timerfd_settime(timer.get(), 0, &times, nullptr);
  watch_timer_ = host::GuardedFd(std::move(timer));
  return loop_->add(watch_timer_.get(), this);
}

void TagTransport::on_ready(bool, bool) {
  uint64_t ticks = 0;
  if (read(watch_timer_.get(), &ticks, sizeof(ticks)) == sizeof(ticks)) look_is_due_ = true;
}

void TagTransport::share_signs_of_life(std::vector<int> host_of,
                                       std::vector<std::atomic<int64_t>*> boards) {
  host_of_ = std::move(host_of);
  boards_ = std::move(boards);
}

// What this rank has heard, written down for the others of this host, and what they have.
std::vector<bool> TagTransport::hosts_heard(std::chrono::steady_clock::time_point now) {
  std::vector<bool> heard = watch_->hosts_heard();
  const int64_t now_ns = now.time_since_epoch().count();
  for (size_t host = 0; host < heard.size() && !boards_.empty(); ++host) {
    if (heard[host]) boards_.front()[host].store(now_ns, std::memory_order_relaxed);
    for (size_t i = 1; i < boards_.size() && !heard[host]; ++i)
      heard[host] = boards_[i][host].load(std::memory_order_relaxed) > looked_ns_;
  }
  looked_ns_ = now_ns;
  return heard;
}

// After everything that has arrived was read.
bool TagTransport::look_at_peers() {
  look_is_due_ = false;
  std::vector<bool> watched;
  for (const PeerState& peer_state : peers_) {
    watched.push_back(peer_state.connection != nullptr && peer_state.connection->crosses_hosts() &&
                      !peer_state.end && !peer_state.goodbye_sent);
  }
  const auto now = std::chrono::steady_clock::now();
  const auto verdicts = watch_->look(now, watched, hosts_heard(now));
  for (const Rank peer : verdicts.beats) {
    PeerState& peer_state = peers_[static_cast<size_t>(peer)];
    // Behind a frame that has begun, a beat would say nothing that its next byte does not.
    if (peer_state.current || !peer_state.urgent.empty()) continue;
    peer_state.urgent.push_back({header_of(FrameType::kBeat, 0, 0, 0), {}, {}, 0, nullptr});
  }
  for (const Rank peer : verdicts.suspects) {
    RUEDA_WARN("transport", "{} has given no sign of life for {}",
               peers_[static_cast<size_t>(peer)].name, seconds(watch_->silence(peer)));
  }
  for (const Rank peer : verdicts.recovered)
    RUEDA_WARN("transport", "{} is back", peers_[static_cast<size_t>(peer)].name);
  for (const Rank peer : verdicts.dead) {
    if (closed_) break;
    const std::string why =
        watch_->is_alone(peer) ? "the process is stopped (its host answers)"
                               : "the process is stopped, its host is down, or the network between "
                                 "is cut";
    end_peer(peer, unavailable("no sign of life for " + seconds(watch_->silence(peer)) +
                               " (RUEDA_DEAD_SECONDS): " + why));
  }
  return !verdicts.beats.empty() || !verdicts.dead.empty();
}

}  // namespace rueda::transport

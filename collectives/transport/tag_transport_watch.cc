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
  for (const PeerState& peer : peers_) any = any || peer.crosses_hosts;
  if (!any || dead_after.count() <= 0) return {};
  for (int rank = static_cast<int>(host_of_.size()); rank < static_cast<int>(peers_.size()); ++rank)
    host_of_.push_back(rank);
  watch_.emplace(WatchTimes{dead_after}, host_of_, std::chrono::steady_clock::now());
  // Looks allocate nothing.
  heard_ = watch_->hosts_heard();
  watched_.reserve(peers_.size());
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
const std::vector<bool>& TagTransport::hosts_heard(std::chrono::steady_clock::time_point now) {
  heard_ = watch_->hosts_heard();
  const int64_t now_ns = now.time_since_epoch().count();
  for (size_t host = 0; host < heard_.size() && !boards_.empty(); ++host) {
    if (heard_[host]) boards_.front()[host].store(now_ns, std::memory_order_relaxed);
    for (size_t i = 1; i < boards_.size() && !heard_[host]; ++i)
      heard_[host] = boards_[i][host].load(std::memory_order_relaxed) > looked_ns_;
  }
  looked_ns_ = now_ns;
  return heard_;
}

// After everything that has arrived was read.
bool TagTransport::look_at_peers() {
  look_is_due_ = false;
  watched_.clear();
  for (const PeerState& peer : peers_)
    watched_.push_back(peer.crosses_hosts && !peer.end && !peer.goodbye_said);
  const auto now = std::chrono::steady_clock::now();
  const auto& verdicts = watch_->look(now, watched_, hosts_heard(now));
  for (const Rank rank : verdicts.beats) {
    PeerState& peer = state_of(rank);
    // Behind a frame that has begun, a beat would say nothing that its next byte does not.
    if (peer.writing.active || !peer.urgent.empty()) continue;
    post(peer, header_of(FrameType::kBeat, 0, 0, 0));
  }
  for (const Rank rank : verdicts.suspects) {
    RUEDA_WARN("transport", "{} has given no sign of life for {}", state_of(rank).name,
               seconds(watch_->silence(rank)));
  }
  for (const Rank rank : verdicts.recovered)
    RUEDA_WARN("transport", "{} is back", state_of(rank).name);
  for (const Rank rank : verdicts.dead) {
    if (closed_) break;
    const std::string why =
        watch_->is_alone(rank) ? "the process is stopped (its host answers)"
                               : "the process is stopped, its host is down, or the network between "
                                 "is cut";
    end_peer(rank, unavailable("no sign of life for " + seconds(watch_->silence(rank)) +
                               " (RUEDA_DEAD_SECONDS): " + why));
  }
  return !verdicts.beats.empty() || !verdicts.dead.empty();
}

}  // namespace rueda::transport

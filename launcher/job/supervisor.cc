#include "launcher/job/supervisor.h"

#include <signal.h>

#include <algorithm>

namespace rueda::launcher {
namespace {

// How long survivors may take to notice a lost peer, raise and end by themselves.
constexpr Duration kSurvivorsChance = std::chrono::seconds(2);

}  // namespace

void Supervisor::stop_for(StopCause cause, int signal, std::deque<Step> steps) {
  if (cause_ == StopCause::kNone) {
    cause_ = cause;
    cause_signal_ = signal;
  }
  if (!killed_) steps_ = std::move(steps);
}

void Supervisor::rank_failed(TimePoint now) {
  if (cause_ != StopCause::kNone) return;
  const TimePoint ask = now + std::min(grace_, kSurvivorsChance);
  stop_for(StopCause::kRankFailed, 0, {{ask, SIGTERM}, {ask + grace_, SIGKILL}});
}

void Supervisor::signal_received(int signal, TimePoint now) {
  if (++signals_ > 1) {
    stop_for(StopCause::kSignal, signal, {{now, SIGKILL}});
  } else if (signal == SIGINT) {
    stop_for(StopCause::kSignal, signal,
             {{now, SIGINT}, {now + grace_ / 2, SIGTERM}, {now + grace_, SIGKILL}});
  } else {
    stop_for(StopCause::kSignal, signal, {{now, SIGTERM}, {now + grace_, SIGKILL}});
  }
}

void Supervisor::output_closed(TimePoint now) {
  if (cause_ != StopCause::kNone) return;
  stop_for(StopCause::kOutputClosed, SIGPIPE, {{now, SIGTERM}, {now + grace_, SIGKILL}});
}

void Supervisor::job_over(TimePoint now) {
  if (cause_ != StopCause::kNone) return;
  stop_for(StopCause::kRankFailed, 0, {{now, SIGTERM}, {now + grace_, SIGKILL}});
}

void Supervisor::driver_lost(TimePoint now) {
  stop_for(StopCause::kDriverLost, SIGKILL, {{now, SIGKILL}});
}

void Supervisor::leftovers_remain(TimePoint now) {
  if (sweeping_) return;
  sweeping_ = true;
  if (!killed_) steps_ = {{now, SIGTERM}, {now + grace_, SIGKILL}};
}

std::vector<int> Supervisor::due(TimePoint now) {
  std::vector<int> signals;
  while (!steps_.empty() && steps_.front().at <= now) {
    signals.push_back(steps_.front().signal);
    if (cause_ != StopCause::kNone) sent_ = true;
    if (steps_.front().signal == SIGKILL) killed_ = true;
    const Duration late = now - steps_.front().at;
    steps_.pop_front();
    for (Step& next : steps_) next.at += late;
  }
  return signals;
}

std::optional<TimePoint> Supervisor::next_deadline() const {
  if (steps_.empty()) return std::nullopt;
  return steps_.front().at;
}

}  // namespace rueda::launcher

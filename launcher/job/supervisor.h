// When a job is stopped, and how: the launcher's decisions without its system calls.
//
//   running ──a rank fails──> failing: survivors may still raise errors of their own
//      │                          │ min(grace, 2 s)
//      │ SIGTERM, SIGHUP,         v
//      ├─our output closed,
//      ├─an elastic job is over──> SIGTERM ──grace──> SIGKILL
//      ├─SIGINT──> SIGINT ──grace/2──> SIGTERM ──grace/2──> SIGKILL
//      └─driver lost, second signal ──> SIGKILL
//
// Each signal has its whole time before the next one, also where the launcher itself was held up.
// What started the stop is remembered and never replaced: it decides the exit code. Pure; time is
// what the caller says it is.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <vector>

namespace rueda::launcher {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

enum class StopCause { kNone, kRankFailed, kSignal, kOutputClosed, kDriverLost };

class Supervisor {
 public:
  explicit Supervisor(Duration grace) : grace_(grace) {}

  void rank_failed(TimePoint now);
  void signal_received(int signal, TimePoint now);
  void output_closed(TimePoint now);
  void driver_lost(TimePoint now);
  // An elastic job has failed: what its ranks have to say of it has been said.
  void job_over(TimePoint now);
  // All ranks have ended but some of their descendants have not.
  void leftovers_remain(TimePoint now);

  // Signals to send to everything that is left, now; each is given out once.
  std::vector<int> due(TimePoint now);
  // When due() must be asked again; nullopt: not before the next event.
  std::optional<TimePoint> next_deadline() const;

  StopCause cause() const { return cause_; }
  int cause_signal() const { return cause_signal_; }
  // Something has been sent: ranks that end from now on were stopped by us.
  bool stopping() const { return sent_; }
  bool killed() const { return killed_; }

 private:
  struct Step {
    TimePoint at;
    int signal;
  };
  void stop_for(StopCause cause, int signal, std::deque<Step> steps);

  const Duration grace_;
  StopCause cause_ = StopCause::kNone;
  int cause_signal_ = 0;
  bool sent_ = false;
  bool killed_ = false;
  bool sweeping_ = false;
  int signals_ = 0;
  std::deque<Step> steps_;
};

}  // namespace rueda::launcher

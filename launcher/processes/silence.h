// When a rank that makes no sound is suspected, and when it is dead. Pure: the caller brings the
// observations.
//
//   live ──stopped──> quiet ──1 s──> suspect ──dead_after──> dead
//     ^                 │               │
//     └────────continues or moves───────┘
//
// Only stopping counts. A debugger, a core dump, a disk, a starved processor are told apart in
// /proc and are no death. Time counts only while we ourselves look often enough: who was paused or
// starved itself must not blame others for what it has not seen.
#pragma once

#include <string>

#include "launcher/job/supervisor.h"

namespace rueda::launcher {

// As /proc tells it (process_tree.h reads it).
struct ProcessState {
  char letter = '?';  // R S D T t Z X
  bool dumping_core = false;
};
// "stopped (state T)"
std::string describe_state(const ProcessState& state);

class Silence {
 public:
  enum class Verdict { kLive, kSuspect, kGoesOn, kTraced, kDead };
  explicit Silence(Duration dead_after);

  // since: the last observation. moved: its counters have changed. kSuspect, kGoesOn and kTraced
  // are given once per change.
  Verdict observe(const ProcessState& state, bool moved, Duration since);
  Duration quiet() const { return quiet_; }

 private:
  const Duration dead_after_;
  const Duration suspect_after_;
  Duration quiet_{};
  bool suspected_ = false;
  bool traced_ = false;
};

}  // namespace rueda::launcher

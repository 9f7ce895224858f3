#include "launcher/processes/silence.h"

#include <algorithm>
#include <utility>

namespace rueda::launcher {
namespace {

// An observer that looks more seldom than this counts only so much.
constexpr Duration kMostPerLook = std::chrono::milliseconds(600);

}  // namespace

std::string describe_state(const ProcessState& state) {
  if (state.dumping_core) return "dumping core";
  switch (state.letter) {
    case 'T': return "stopped (state T)";
    case 't': return "held by a debugger (state t)";
    case 'D': return "waiting for a disk (state D)";
    case 'Z': return "ended (state Z)";
    default: return std::string("in state ") + state.letter;
  }
}

Silence::Silence(Duration dead_after)
    : dead_after_(dead_after),
      suspect_after_(std::min<Duration>(std::chrono::seconds(1), dead_after / 2)) {}

Silence::Verdict Silence::observe(const ProcessState& state, bool moved, Duration since) {
  const bool traced = state.letter == 't' || state.dumping_core;
  if (traced != traced_) {
    traced_ = traced;
    if (traced) {
      quiet_ = {};
      return Verdict::kTraced;
    }
  }
  if (state.letter != 'T' || moved) {
    quiet_ = {};
    return std::exchange(suspected_, false) ? Verdict::kGoesOn : Verdict::kLive;
  }
  quiet_ += std::min(since, kMostPerLook);
  if (quiet_ >= dead_after_) return Verdict::kDead;
  if (quiet_ >= suspect_after_ && !std::exchange(suspected_, true)) return Verdict::kSuspect;
  return Verdict::kLive;
}

}  // namespace rueda::launcher

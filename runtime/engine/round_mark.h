// RoundMark: a mark in the timeline for each round of the coordinator in which a negotiated batch
// begins.
#pragma once

#include <cstdint>
#include <utility>

#include "collectives/host/monotonic.h"
#include "runtime/observe/timeline/recorder.h"

namespace rueda::engine {

class RoundMark {
 public:
  explicit RoundMark(timeline::Recorder* recorder) : recorder_(recorder) {}  // borrowed
  void round_begins() { ++round_; }
  void batch_begins() {
    if (recorder_->on() && std::exchange(marked_, round_) != round_)
      recorder_->cycle(host::monotonic_ns());
  }

 private:
  timeline::Recorder* recorder_;
  uint64_t round_ = 0;
  uint64_t marked_ = 0;
};

}  // namespace rueda::engine

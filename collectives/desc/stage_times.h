// When a collective passed its stages on this rank. Stages overlap: a long batch is packed at its
// end while its beginning is unpacked.
#pragma once

#include <cstdint>

#include "collectives/host/monotonic.h"

namespace rueda {

// Nanoseconds of the monotonic clock; 0: it did not happen.
struct StageTimes {
  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
  };
  int64_t met = 0;  // every rank has entered it
  Span packed;      // into memory that peers read
  Span wire;        // between ranks, and combined
  Span unpacked;    // into the tensors
};

// Stretches a span over its own life. times: null where nobody asks.
class StageStamp {
 public:
  StageStamp(StageTimes* times, StageTimes::Span StageTimes::*stage)
      : span_(times == nullptr ? nullptr : &(times->*stage)) {
    if (span_ != nullptr && span_->begin == 0) span_->begin = host::monotonic_ns();
  }
  ~StageStamp() {
    if (span_ != nullptr) span_->end = host::monotonic_ns();
  }
  StageStamp(const StageStamp&) = delete;
  StageStamp& operator=(const StageStamp&) = delete;

 private:
  StageTimes::Span* span_;
};

}  // namespace rueda

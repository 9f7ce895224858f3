// When a collective passed its stages on this rank. Stages overlap: a long batch is packed at its
// end while its beginning is unpacked.
#pragma once

#include <chrono>
#include <cstdint>

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

inline int64_t stage_clock() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Stretches a span over its own life. times: null where nobody asks.
class StageStamp {
 public:
  StageStamp(StageTimes* times, StageTimes::Span StageTimes::*stage)
      : span_(times == nullptr ? nullptr : &(times->*stage)) {
    if (span_ != nullptr && span_->begin == 0) span_->begin = stage_clock();
  }
  ~StageStamp() {
    if (span_ != nullptr) span_->end = stage_clock();
  }
  StageStamp(const StageStamp&) = delete;
  StageStamp& operator=(const StageStamp&) = delete;

 private:
  StageTimes::Span* span_;
};

}  // namespace rueda

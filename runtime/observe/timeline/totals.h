// Totals: what a rank did, in a few numbers, for the summary at the end of a run.
//
// Threads: any, under a mutex that is held for a few additions.
#pragma once

#include <mutex>

#include "proto/messages.h"
#include "runtime/observe/timeline/event.h"

namespace rueda::timeline {

class Totals {
 public:
  enum Stage : size_t {
    kBackward,
    kSubmitted,
    kNegotiated,
    kQueued,
    kPacked,
    kWire,
    kUnpacked,
    kStep,
    kStages
  };
  explicit Totals(Nanos now) : since_(now), changed_(now) {}

  void batch_begun(Nanos now);
  void batch_dropped(Nanos now);
  void batch_ended(const BatchRun& run);
  void member(Nanos submitted, Nanos taken, Nanos begun);
  // Of kBackward and kStep; ends without a beginning are ignored.
  void begin(Stage stage, Nanos now);
  void end(Stage stage, Nanos now);
  // Without `waited`.
  wire::RankSummary sum(Nanos now) const;

 private:
  struct Sum {
    Nanos time = 0;
    uint64_t count = 0;
    void add(Nanos more) {
      time += more;
      ++count;
    }
  };
  // The time since the last change was busy, or overlapped, as it was then.
  void account(Nanos now);

  mutable std::mutex mutex_;
  const Nanos since_;
  Nanos changed_;
  int under_way_ = 0;
  Nanos begun_[kStages] = {};  // open marks; 0: none
  Sum stages_[kStages];
  Nanos busy_ = 0;
  Nanos overlapped_ = 0;
  uint64_t batches_ = 0;
  uint64_t planned_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace rueda::timeline

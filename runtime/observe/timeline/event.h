// What is put into the ring between those who run collectives and the thread that writes them down.
// Plain values of fixed size: nothing is allocated or formatted for one.
#pragma once

#include <cstdint>

#include "collectives/base/types.h"
#include "collectives/desc/stage_times.h"

namespace rueda::timeline {

// Nanoseconds of the monotonic clock; 0: it did not happen.
using Nanos = int64_t;
// A tensor or a mark, by its place in Labels.
using LabelId = uint32_t;

// The same batch has the same number on every rank: negotiated ones (generation 0) count since init
// in the root's order, those of a step plan since the plan began; each process set by itself.
struct BatchNumber {
  uint64_t generation = 0;
  uint64_t number = 0;
  uint32_t set = 0;
};

// One collective from its start to its end on this rank.
struct BatchRun {
  BatchNumber number;
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int64_t bytes = 0;
  Nanos begun = 0;  // handed to the communicator
  StageTimes stages;
  Nanos ended = 0;
};

enum class Mark : uint8_t { kBegin = 0, kEnd = 1, kInstant = 2 };

struct Event {
  enum class What : uint8_t {
    kBatch,    // then its members
    kMember,   // of the last batch
    kArrival,  // the root: a rank has this tensor ready
    kMark,
    kCycle
  };
  What what = What::kCycle;
  Mark mark = Mark::kInstant;
  Rank rank = 0;         // kArrival
  LabelId label = 0;     // kMember, kArrival, kMark
  uint32_t members = 0;  // kBatch
  union {
    Nanos time;  // kArrival, kMark, kCycle
    BatchRun batch;
    struct {
      Nanos submitted;  // by the user's thread; 0: not known
      Nanos taken;      // by the coordinator
      int64_t bytes;
    } member;
  };
  Event() : time(0) {}
};

}  // namespace rueda::timeline

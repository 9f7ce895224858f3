// Stragglers: which rank the others wait for, judged from who arrives last; no rank measures
// itself.
//
// An incident: somebody was blocked until that rank arrived. A rank is named when it caused most of
// what the latest incidents cost and that is worth a word; after that at growing intervals.
//
//   the latest 16    |--r2--|      |--r2--|  |r1| |--r2--|
//                    ^ begin                             ^ now     share = sum(r2) / (now - begin)
//
// Pure: time comes from outside. One thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/base/types.h"
#include "proto/messages.h"

namespace rueda::engine {

class Stragglers {
 public:
  using Nanos = int64_t;  // of the monotonic clock

  static constexpr size_t kWindow = 16;    // incidents that are looked at
  static constexpr size_t kIncidents = 8;  // of these, of one rank, before it is named
  static constexpr double kShare = 0.05;   // of the time, least
  static constexpr double kOwn = 0.75;     // of what all ranks cost; chance makes any rank late
  static constexpr Nanos kWorthIt = 1'000'000;  // per incident, least
  static constexpr Nanos kInAll = 100'000'000;  // of the rank, ever, least: nothing is said at once
  static constexpr Nanos kPause =
      60'000'000'000;  // between two words about a rank; then it doubles

  struct Finding {
    Rank rank = 0;
    size_t incidents = 0;
    Nanos mean = 0;    // cost of one
    double share = 0;  // of the time that was looked at
    Nanos length = 0;  // of that time
  };

  explicit Stragglers(Rank size) : ranks_(static_cast<size_t>(size)) {}

  // Someone was blocked for `cost` until `rank` came, now. again: everything that this waits for
  // was there before the last incident ended, so both are one: who begins a step late brings each
  // of its tensors late. A finding: the rank should be named.
  std::optional<Finding> late(Rank rank, Nanos cost, Nanos now, bool again = false);
  // Everything so far; those who were waited for longest, longest first.
  std::vector<wire::Waited> totals() const;

 private:
  struct Count {
    Nanos total = 0;
    uint64_t times = 0;
    Nanos quiet_until = 0;
    Nanos pause = kPause;
  };
  struct Incident {
    Rank rank = 0;
    Nanos cost = 0;
    Nanos end = 0;
  };

  std::vector<Count> ranks_;
  std::array<Incident, kWindow> window_{};  // a ring: nothing is allocated
  uint64_t incidents_ = 0;                  // so far
};

}  // namespace rueda::engine

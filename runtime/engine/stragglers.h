// Stragglers: which rank the others wait for, judged from who arrives last; no rank measures
// itself.
//
// Somebody was blocked until that rank arrived: that is what it cost. Costs of the last ten seconds
// are kept in buckets of a second each, by rank, and a rank is slow when all of this holds:
//
//   share       a tenth of these seconds went into waiting for it. What ends within one second
//               counts half of that at most, so that a single pause, however long (a checkpoint,
//               an evaluation), makes nobody slow
//   own part    that is three quarters of what all ranks cost: chance makes any rank late now and
//               then
//   direction   it has slept itself, until others came, for half of its cost at most: ranks that
//               wait for each other are not slow
//   age         the job is older than ten seconds: the first steps are nobody's measure
//
// Pure: time comes from outside. Allocates when it is made. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/base/types.h"
#include "proto/messages.h"

namespace rueda::engine {

class Stragglers {
 public:
  using Nanos = int64_t;  // of the monotonic clock

  static constexpr Nanos kBucket = 1'000'000'000;
  static constexpr size_t kBuckets = 10;
  static constexpr Nanos kWindow = kBuckets * kBucket;
  static constexpr double kShare = 0.10;    // of the window, least
  static constexpr double kOwnPart = 0.75;  // of what all ranks cost, least
  static constexpr double kSlept = 0.5;     // of what the rank cost, most
  static constexpr Nanos kMostOfABucket = kWindow / 20;
  static_assert(kMostOfABucket < kShare * kWindow);

  // What is said of a slow rank: of the window.
  struct Finding {
    Rank rank = 0;
    uint64_t times = 0;  // somebody was blocked until it came
    Nanos cost = 0;      // for so long, altogether
    double share = 0;    // of the window
    // Of about the window, as LateRanks knows it: shares of it for which its program waited for
    // data and its first thread was blocked by disks; bytes from and to disks, each second; the
    // same of the rank that says so.
    double data = 0;
    double disk = 0;
    double disk_bytes = 0, own_disk_bytes = 0;
  };

  // begun: the job.
  Stragglers(Rank size, Nanos begun);

  // Someone was blocked for `cost` until `rank` came, now. slept: how long threads of that rank
  // have been blocked so far until others came; empty where that is not known.
  void late(Rank rank, Nanos cost, Nanos now, std::optional<Nanos> slept = {});
  // Behind late(): is that rank slow?
  std::optional<Finding> judge(Rank rank, Nanos now, std::optional<Nanos> slept = {}) const;

  // The rank that was waited for longest so far.
  const wire::Waited& worst() const { return worst_; }
  // Everything so far; those who were waited for longest, longest first.
  std::vector<wire::Waited> totals() const;

 private:
  struct Bucket {
    int64_t second = -1;  // of the clock
    Nanos cost = 0;
    uint64_t times = 0;
    std::optional<Nanos> slept;  // as it was when the bucket began
    Nanos weight() const { return cost < kMostOfABucket ? cost : kMostOfABucket; }
  };
  struct Count {
    Nanos total = 0;
    uint64_t times = 0;
    std::array<Bucket, kBuckets> buckets;  // a ring
  };
  static Bucket* bucket_of(Count* count, Nanos now);
  static bool is_recent(const Bucket& bucket, Nanos now);

  const Nanos begun_;
  std::vector<Count> ranks_;
  wire::Waited worst_;
};

}  // namespace rueda::engine

// SlowRanks: which member of an epoch is so much slower than the others, for so long, that it is
// better replaced (--evict-slow). Pure.
//
// In a synchronous job all do their steps in the same time: who is slow computes, and the others
// wait for it. What a member does not spend waiting for operations is busy time, and how many times
// slower one is than the others is its busy part of the time over the median of theirs. A member is
// slow when that is at least `factor` in each quarter of the last `seconds`, so that no single
// pause (a checkpoint, an evaluation) of less than half of them makes it slow, and a step may take
// a quarter of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "launcher/job/member.h"

namespace rueda::launcher::membership {

struct SlowPolicy {
  double factor = 2;
  double seconds = 30;
};

class SlowRanks {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The others wait at least this part of the time, or nobody is slow.
  static constexpr double kShare = 0.1;

  explicit SlowRanks(SlowPolicy policy) : policy_(policy) {}

  // What was before counts no more.
  void begin_epoch(const std::vector<MemberId>& members);
  void forget(MemberId member) { members_.erase(member); }
  // Heard at this time of ours: at its own host's `at_ns` the member had waited `waited_ns` so far.
  void take(MemberId member, Time heard, int64_t at_ns, int64_t waited_ns);

  struct Finding {
    MemberId member = 0;
    double factor = 0;  // least of the quarters'
  };
  std::optional<Finding> look() const;

 private:
  struct Sample {
    Time heard;
    double at = 0, waited = 0;
  };
  using Samples = std::deque<Sample>;
  static Sample between(const Samples& samples, Time time);
  std::optional<Finding> look_at(Time from, Time to) const;

  const SlowPolicy policy_;
  std::map<MemberId, Samples> members_;
};

}  // namespace rueda::launcher::membership

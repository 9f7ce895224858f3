// Which waits are due to be explained: those that are old enough, and then each time their age has
// doubled. Pure; the agent of a job on one host uses it, the controller of a job over several.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/observe/flight_explain.h"

namespace rueda::launcher {

class StallWatch {
 public:
  // seconds: the age at which a wait is explained; 0: never.
  explicit StallWatch(double seconds) : seconds_(seconds) {}

  struct Due {
    bool any = false;
    bool anew = false;  // one of them has not been explained before
    std::set<Rank> waiting;
    std::set<Rank> absent;  // whose stacks tell why; a few
  };
  Due look(const std::vector<RankRecord>& ranks, int64_t now_ns);
  // Nothing waits.
  void forget() { told_.clear(); }

  double seconds() const { return seconds_; }

 private:
  struct Told {
    int64_t since_ns = 0;
    double next = 0;  // age in seconds
  };
  const double seconds_;
  std::map<std::string, Told> told_;  // by process set and name, of messages by their ranks too
};

}  // namespace rueda::launcher

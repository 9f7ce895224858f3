// How often the rank of a slot was replaced, and whether it may be once more. Pure.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "launcher/membership/host_table.h"

namespace rueda::launcher::membership {

class SlotHistory {
 public:
  // `most` replacements within `span`.
  SlotHistory(int most, Seconds span) : most_(most), span_(span) {}

  // Its rank has failed; whether a new one may be started there.
  bool failed(const std::string& host, int slot, Time now) {
    std::deque<Time>& times = failures_[{host, slot}];
    while (!times.empty() && now - times.front() > span_) times.pop_front();
    times.push_back(now);
    return static_cast<int>(times.size()) <= most_;
  }
  void bar(const std::string& host, int slot) { barred_.insert({host, slot}); }
  bool barred(const std::string& host, int slot) const { return barred_.count({host, slot}) != 0; }
  const std::set<std::pair<std::string, int>>& barred() const { return barred_; }
  // The host was away: its slots begin anew.
  void forget(const std::string& host) {
    std::erase_if(failures_, [&](const auto& it) { return it.first.first == host; });
    std::erase_if(barred_, [&](const auto& it) { return it.first == host; });
  }

 private:
  const int most_;
  const Seconds span_;
  std::map<std::pair<std::string, int>, std::deque<Time>> failures_;
  std::set<std::pair<std::string, int>> barred_;
};

}  // namespace rueda::launcher::membership

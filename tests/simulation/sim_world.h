// SimWorld: a clock, a network and the checks that all ranks of one simulated job share.
// One thread; everything random comes from the seed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "collectives/base/types.h"
#include "runtime/negotiation/readiness_table.h"
#include "tests/simulation/revocation_model.h"

namespace rueda::testing {

class SimWorld {
 public:
  SimWorld(uint64_t seed, Rank ranks) : size(ranks), random_(seed) {}

  uint64_t below(uint64_t bound) { return random_() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  // Mostly short, sometimes long: what reorders things.
  int64_t delay() { return static_cast<int64_t>(one_in(20) ? below(300'000) : below(3'000)); }

  int64_t now() const { return now_; }
  negotiation::Time time() const {
    return negotiation::Time{} + std::chrono::hours(1) + std::chrono::nanoseconds(now_);
  }
  void after(int64_t delay, std::function<void()> what) {
    events_.push({now_ + delay, sequence_++, std::move(what)});
  }
  // Until nothing happens any more, or this time has passed.
  void run(int64_t until_ns) {
    while (!events_.empty() && failure.empty()) {
      if (events_.top().at > until_ns) return fail("the simulated time has run out");
      Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.what();
    }
  }
  void fail(const std::string& why) {
    if (failure.empty()) failure = why + " at " + std::to_string(now_) + " ns";
  }

  // What runs must be the same on all ranks: the first to do item n of a list says what it is.
  void same(const std::string& list, uint64_t n, const std::string& what) {
    const auto [it, is_new] = said_.try_emplace({list, n}, what);
    if (!is_new && it->second != what)
      fail(list + " " + std::to_string(n) + ": '" + what + "' and '" + it->second + "'");
  }
  // The abstract protocol of one generation, followed step by step.
  RevocationModel& model(uint64_t generation) {
    RevocationModel& model = models[generation];
    model.size = size;
    return model;
  }
  void check(bool allowed, const char* what) {
    if (!allowed) fail(std::string("the model does not allow: ") + what);
  }

  const Rank size;
  Bug bug = Bug::kNone;
  std::string failure;
  bool crashed = false;
  int64_t control_messages = 0;
  int64_t planned_runs = 0;
  int64_t revocations = 0;
  std::map<uint64_t, RevocationModel> models;
  std::map<uint64_t, Rank> launched;  // negotiated batch -> ranks that have begun it

 private:
  struct Event {
    int64_t at;
    uint64_t sequence;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };
  std::mt19937_64 random_;
  int64_t now_ = 0;
  uint64_t sequence_ = 0;
  std::priority_queue<Event> events_;
  std::map<std::pair<std::string, uint64_t>, std::string> said_;
};

}  // namespace rueda::testing

// SimWorld: a clock, a network and the checks that all ranks of one simulated job share.
// One thread; everything random comes from the seed.
#pragma once

#include <algorithm>
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

// What goes from rank to rank, each in its order: lists and last words, and the data of plans.
enum class Stream { kControl, kData };

class SimWorld {
 public:
  using Model = RevocationModel<6, int64_t>;

  // one_stream: there is one order for everything from one rank to another.
  SimWorld(uint64_t seed, Rank ranks, bool one_stream = false)
      : size(ranks),
        one_stream_(one_stream),
        random_(seed),
        connections_(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)) {}

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

  // ---- the network: takes a while, keeps the order of a stream, loses what is under way when a
  // connection ends
  void carry(Rank from, Rank to, Stream stream, std::function<void()> what) {
    Connection& way = connection(from, to);
    int64_t& free = stream == Stream::kData && !one_stream_ ? way.data_free : way.control_free;
    // Data may be under way for long: until the generation that it belongs to is over.
    const bool is_late = stream == Stream::kData && one_in(40);
    free = std::max(free, now_ + (is_late ? static_cast<int64_t>(below(3'000'000)) : delay()));
    after(free - now_, [this, &way, what = std::move(what)] {
      if (now_ <= way.ends) what();
    });
  }
  // Nothing arrives later than this.
  void end_connection(Rank from, Rank to, int64_t at) {
    Connection& way = connection(from, to);
    way.ends = std::min(way.ends, at);
  }

  // What runs must be the same on all ranks: the first to do item n of a list says what it is.
  void same(const std::string& list, uint64_t n, const std::string& what) {
    const auto [it, is_new] = said_.try_emplace({list, n}, what);
    if (!is_new && it->second != what)
      fail(list + " " + std::to_string(n) + ": '" + what + "' and '" + it->second + "'");
  }
  // The abstract protocol of one generation, followed step by step.
  Model& model(uint64_t generation) {
    Model& model = models[generation];
    model.size = size;
    return model;
  }
  void check(bool allowed, const char* what) {
    if (!allowed) fail(std::string("the model does not allow: ") + what);
  }

  const Rank size;
  Bug bug = Bug::kNone;
  std::string failure;
  bool faulty = false;  // a rank has crashed, or a connection was cut
  int64_t control_messages = 0;
  int64_t planned_runs = 0;
  int64_t revocations = 0;
  int64_t first_to_leave_ns = INT64_MAX;
  int64_t late_data = 0;   // messages that came when a newer generation was in force
  int64_t early_data = 0;  // that came before theirs had begun here
  int64_t overtaken = 0;   // last words that came before data of their sender
  std::map<uint64_t, Model> models;
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
  struct Connection {  // one way
    int64_t control_free = 0;
    int64_t data_free = 0;
    int64_t ends = INT64_MAX;
  };
  Connection& connection(Rank from, Rank to) {
    return connections_[static_cast<size_t>(from) * static_cast<size_t>(size) +
                        static_cast<size_t>(to)];
  }

  const bool one_stream_;
  std::mt19937_64 random_;
  std::vector<Connection> connections_;
  int64_t now_ = 0;
  uint64_t sequence_ = 0;
  std::priority_queue<Event> events_;
  std::map<std::pair<std::string, uint64_t>, std::string> said_;
};

}  // namespace rueda::testing

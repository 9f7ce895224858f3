// The parts of the step plan one by one: what repeats, who goes where, which protocol. The whole is
// tested in tests/simulation.
#include <catch2/catch.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/negotiation/protocol_chooser.h"
#include "runtime/plan/cycle_detector.h"
#include "runtime/plan/follower.h"
#include "runtime/plan/plan_keeper.h"
#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

using negotiation::ProtocolChooser;
using plan::CycleDetector;
using plan::Follower;
using plan::OpHandle;
using plan::PlanKeeper;
using Batches = std::vector<CycleDetector::Batch>;

// A follower, and what its owner would do with what it asks for.
struct Followed {
  explicit Followed(Rank size)
      : follower(size, std::chrono::seconds(1)), last_words(static_cast<size_t>(size)) {}

  // The cache ids are this rank's request ids too.
  void begin(plan::StepPlan plan, const std::vector<std::string>& names) {
    std::vector<Follower::Place> places;
    for (const plan::PlannedBatch& batch : plan.batches)
      for (const plan::CacheId id : batch.ids) places.push_back({id, names[places.size()]});
    follower.begin(std::move(plan), places, at(0));
  }
  bool ready(plan::RequestId id, int& of, double now = 0) {
    const Follower::Taken what = follower.on_ready(id, handle(of), at(now));
    CHECK(what != Follower::Taken::kNo);
    perform();
    return what == Follower::Taken::kEntered;
  }
  // True: this rank is back.
  bool look(double now = 0) {
    if (!follower.following()) return false;
    follower.on_progress({ran, false, last_words}, at(now));
    perform();
    return !follower.following();
  }
  static OpHandle handle(int& of) { return OpHandle(&of); }

  Follower follower;
  std::vector<std::optional<uint64_t>> last_words;  // this rank's is number 0
  uint64_t ran = 0;
  std::vector<std::vector<OpHandle>> taken;
  std::optional<uint64_t> ended;  // from there on nothing runs

 private:
  void perform() {
    for (plan::Action& action : std::exchange(follower.actions(), {})) {
      if (const auto* enter = std::get_if<plan::EnterBatch>(&action)) {
        taken.emplace_back(enter->handles.begin(), enter->handles.end());
      } else if (const auto* revoke = std::get_if<plan::RevokePlan>(&action)) {
        CHECK(revoke->last_word == taken.size());
        last_words[0] = revoke->last_word;
      } else {
        ended = std::get<plan::EndPlan>(action).first;
        std::vector<OpHandle> back;
        for (uint64_t n = *ended; n < taken.size(); ++n)
          back.insert(back.end(), taken[n].begin(), taken[n].end());
        follower.on_withdrawn(back);
      }
    }
  }
};

TEST_CASE("a cycle is found when it has come three times, and the shortest one", "[plan]") {
  CycleDetector detector;
  const Batches step = {{0, 1}, {2}, {3}};
  for (int round = 0; round < 3; ++round) {
    for (const auto& batch : step) {
      CHECK_FALSE(detector.cycle(3));
      detector.add(batch);
    }
  }
  REQUIRE(detector.cycle(3));
  CHECK(*detector.cycle(3) == step);
  CHECK_FALSE(detector.cycle(4));
  detector.add({0, 1});
  CHECK(*detector.cycle(3) == Batches{{2}, {3}, {0, 1}});  // it may begin anywhere
  detector.add({9});
  CHECK_FALSE(detector.cycle(3));
}

TEST_CASE("the longest cycle is 512 batches", "[plan]") {
  for (const uint32_t period : {512U, 513U}) {
    CycleDetector detector;
    for (uint32_t n = 0; n < 3 * period; ++n) detector.add({n % period});
    CHECK(detector.cycle(3).has_value() == (period == 512));
  }
}

TEST_CASE("each revocation doubles the cycles needed, a lasting plan resets them", "[plan]") {
  PlanKeeper keeper(2);
  CHECK(keeper.needed() == 3);
  keeper.on_end(0, false);
  CHECK(keeper.needed() == 6);
  keeper.on_end(5, true);  // retuned: nobody's fault
  CHECK(keeper.needed() == 6);
  for (int i = 0; i < 20; ++i) keeper.on_end(1, false);
  CHECK(keeper.needed() == 1024);
  keeper.on_end(8 * 1024, false);
  CHECK(keeper.needed() == 3);
}

TEST_CASE("a request for a planned id counts by what its sender had seen", "[plan]") {
  PlanKeeper keeper(2);
  keeper.enable();
  for (int round = 0; round < 3; ++round) keeper.on_batch(CollectiveKind::kAllreduce, {4});
  const auto cycle = keeper.candidate();
  REQUIRE(cycle);
  CHECK(keeper.freeze(*cycle).generation == 1);
  CHECK(keeper.place(1, 4) == PlanKeeper::Place::kPlan);  // has not handled the freeze
  CHECK(keeper.place(1, 5) == PlanKeeper::Place::kRoot);
  REQUIRE(keeper.on_stamp(1, 1));
  CHECK(keeper.place(1, 4) == PlanKeeper::Place::kWrong);
  REQUIRE(keeper.on_stamp(1, 2));
  CHECK(keeper.place(1, 4) == PlanKeeper::Place::kRoot);
  CHECK(keeper.in_force());  // rank 0 is not back
  CHECK_FALSE(keeper.on_stamp(1, 1));
  CHECK_FALSE(keeper.on_stamp(0, 3));
  REQUIRE(keeper.on_stamp(0, 2));
  CHECK_FALSE(keeper.in_force());
}

TEST_CASE("when plans have run out of numbers every step is negotiated", "[plan]") {
  PlanKeeper keeper(1, 2);
  keeper.enable();
  for (const uint64_t generation : {1, 2, 3}) {
    for (int round = 0; round < 3; ++round) keeper.on_batch(CollectiveKind::kAllreduce, {4});
    const auto cycle = keeper.candidate();
    CHECK(cycle.has_value() == (generation <= 2));
    if (!cycle) continue;
    CHECK(keeper.freeze(*cycle).generation == generation);
    REQUIRE(keeper.on_stamp(0, 2 * generation));
  }
}

TEST_CASE("batches are entered whole and in the plan's order, whatever the order of readiness",
          "[plan]") {
  Followed one(1);
  one.begin({1, {{CollectiveKind::kAllreduce, {0, 2}}, {CollectiveKind::kAllreduce, {1}}}},
            {"a", "c", "b"});
  int a = 0, b = 0, c = 0;
  for (int round = 0; round < 3; ++round) {
    CHECK_FALSE(one.ready(1, b));  // its turn comes later
    CHECK_FALSE(one.ready(2, c));
    CHECK(one.follower.holds(1));
    CHECK(one.ready(0, a));
    CHECK_FALSE(one.follower.holds(1));
    const size_t n = static_cast<size_t>(round) * 2;
    REQUIRE(one.taken.size() == n + 2);
    CHECK(one.taken[n] == std::vector<OpHandle>{OpHandle(&a), OpHandle(&c)});
    CHECK(one.taken[n + 1] == std::vector<OpHandle>{OpHandle(&b)});
  }
}

TEST_CASE("after a revocation what all had entered runs, the rest comes back in order", "[plan]") {
  Followed one(2);
  const auto kind = CollectiveKind::kAllreduce;
  one.begin({1, {{kind, {0}}, {kind, {1}}, {kind, {2}}}}, {"a", "b", "c"});
  int a = 0, b = 0, c = 0, next = 0;
  one.ready(2, c);
  one.ready(0, a);
  one.ready(1, b);  // all three are entered
  CHECK_FALSE(one.look());
  CHECK_FALSE(one.last_words[0]);
  one.last_words[1] = 1;  // the peer has entered one, and revokes
  CHECK_FALSE(one.look());
  CHECK(one.last_words[0] == 3u);
  CHECK(one.follower.why() == "rank 1 left the plan");
  one.ready(0, next);  // of the next round: is kept for negotiation
  CHECK_FALSE(one.look());
  CHECK_FALSE(one.ended);  // batch 0 must run first, and nothing is withdrawn before
  one.ran = 1;
  REQUIRE(one.look());
  CHECK(one.ended == 1u);
  const auto back = one.follower.take_back();
  REQUIRE(back.size() == 3);
  CHECK(back[0].handle == OpHandle(&b));
  CHECK(back[1].handle == OpHandle(&c));
  CHECK(back[2].handle == OpHandle(&next));
  CHECK(one.follower.stamp() == 2);
  CHECK_FALSE(one.look());
}

TEST_CASE("a plan that stands still is given up, one that nobody uses is not", "[plan]") {
  Followed one(2);
  const auto kind = CollectiveKind::kAllreduce;
  one.begin({1, {{kind, {0}}, {kind, {1}}}}, {"a", "b"});
  one.look(100);
  CHECK_FALSE(one.follower.revoked());
  CHECK_FALSE(one.follower.next_deadline(0));
  int b = 0;
  one.ready(1, b, 100);  // its predecessor never comes, and nobody blocks
  CHECK(one.follower.next_deadline(0) == at(101));
  one.look(100.9);
  CHECK_FALSE(one.follower.revoked());
  one.look(101);
  CHECK(one.follower.revoked());
}

TEST_CASE("a plan that ends at once gives back what no batch has taken", "[plan]") {
  Followed one(2);
  const auto kind = CollectiveKind::kAllreduce;
  one.begin({1, {{kind, {0}}, {kind, {1}}}}, {"a", "b"});
  int a = 0, b = 0, again = 0;
  one.ready(0, a);
  one.ready(1, b);
  one.ready(1, again);
  const auto back = one.follower.drop();  // the batches end with who has them
  REQUIRE(back.size() == 1);
  CHECK(back[0].handle == OpHandle(&again));
  CHECK_FALSE(one.follower.following());
}

TEST_CASE(
    "batches that always overlap go through staging buffers, and a plan need not wait for more",
    "[protocols]") {
  const auto kind = CollectiveKind::kAllreduce;
  constexpr int64_t kBytes = 1 << 20;
  ProtocolChooser protocols("auto");
  protocols.set_cma_available(true);
  for (size_t sent = 0; sent <= 2 * ProtocolChooser::kTries; ++sent) {
    CHECK_FALSE(protocols.settled(kind, kBytes));
    CHECK(protocols.choose(kind, kBytes, at(0)) == ProtocolChooser::kStaged);
  }
  REQUIRE(protocols.settled(kind, kBytes));
  CHECK(protocols.settled_protocol(kind, kBytes) == ProtocolChooser::kStaged);
  CHECK_FALSE(protocols.stale(kind, kBytes, at(639)));
  CHECK(protocols.stale(kind, kBytes, at(641)));
}

TEST_CASE("the protocol with the shorter best time is taken, and asked about again later and later",
          "[protocols]") {
  const auto kind = CollectiveKind::kAllreduce;
  constexpr int64_t kBytes = 1 << 20;
  ProtocolChooser protocols("auto");
  CHECK(protocols.choose(kind, kBytes, at(0)) == ProtocolChooser::kStaged);  // CMA is not possible
  CHECK(protocols.settled(kind, kBytes));
  protocols.set_cma_available(true);
  double now = 0;
  for (const double trust : {60.0, 120.0, 240.0}) {
    REQUIRE_FALSE((protocols.settled(kind, kBytes) && !protocols.stale(kind, kBytes, at(now))));
    int tried[2] = {};
    constexpr int kTries = static_cast<int>(ProtocolChooser::kTries);
    for (int i = 0; i < 2 * kTries; ++i) {
      const uint32_t protocol = protocols.choose(kind, kBytes, at(now));
      const int64_t outlier = tried[protocol]++ % 2 == 0 ? 1'000'000 : 0;
      const int64_t usual = protocol == ProtocolChooser::kCma ? 100 : 200;
      protocols.measured(kind, kBytes, protocol, usual + outlier, at(now));
    }
    CHECK(tried[0] == kTries);
    CHECK(tried[1] == kTries);
    REQUIRE(protocols.settled(kind, kBytes));
    CHECK(protocols.choose(kind, kBytes, at(now)) == ProtocolChooser::kCma);
    CHECK_FALSE(protocols.settled(kind, 1 << 21));  // a class of its own
    CHECK(protocols.choose(kind, 1000, at(now)) == ProtocolChooser::kStaged);
    CHECK_FALSE(protocols.stale(kind, kBytes, at(now + trust - 0.1)));
    now += trust + 0.1;
    CHECK(protocols.stale(kind, kBytes, at(now)));
  }
}

TEST_CASE("a protocol that nobody measures does not hold plans up", "[protocols]") {
  ProtocolChooser protocols("auto");
  protocols.set_cma_available(true);
  for (int i = 0; i < 100; ++i) protocols.choose(CollectiveKind::kAllreduce, 1 << 20, at(0));
  CHECK(protocols.settled(CollectiveKind::kAllreduce, 1 << 20));
  CHECK(protocols.choose(CollectiveKind::kAllreduce, 1 << 20, at(0)) == ProtocolChooser::kStaged);
}

TEST_CASE("kinds that move tensors are measured each by itself, others have no choice",
          "[protocols]") {
  constexpr int64_t kBytes = 1 << 20;
  ProtocolChooser protocols("auto");
  protocols.set_cma_available(true);
  const auto measure = [&](CollectiveKind kind, int64_t staged, int64_t cma) {
    for (size_t i = 0; i < 2 * ProtocolChooser::kTries; ++i) {
      const uint32_t protocol = protocols.choose(kind, kBytes, at(0));
      const int64_t ns = protocol == ProtocolChooser::kCma ? cma : staged;
      protocols.measured(kind, kBytes, protocol, ns, at(0));
    }
    REQUIRE(protocols.settled(kind, kBytes));
    return protocols.settled_protocol(kind, kBytes);
  };
  CHECK(measure(CollectiveKind::kAllgather, 200, 100) == ProtocolChooser::kCma);
  CHECK_FALSE(protocols.settled(CollectiveKind::kAlltoall, kBytes));
  CHECK(measure(CollectiveKind::kAlltoall, 100, 200) == ProtocolChooser::kStaged);
  for (const auto kind : {CollectiveKind::kReducescatter, CollectiveKind::kBroadcast}) {
    CHECK(protocols.settled(kind, kBytes));
    CHECK(protocols.choose(kind, kBytes, at(0)) == ProtocolChooser::kStaged);
  }
}

TEST_CASE("a protocol may be forced", "[protocols]") {
  ProtocolChooser protocols("cma");
  CHECK(protocols.choose(CollectiveKind::kAllreduce, 1 << 20, at(0)) == ProtocolChooser::kStaged);
  protocols.set_cma_available(true);
  CHECK(protocols.choose(CollectiveKind::kAllreduce, 1 << 20, at(0)) == ProtocolChooser::kCma);
  CHECK(protocols.settled(CollectiveKind::kAllreduce, 1 << 20));
}

}  // namespace
}  // namespace rueda::testing

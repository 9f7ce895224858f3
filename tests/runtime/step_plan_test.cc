// The parts of the step plan one by one: what repeats, who goes where, which protocol. The whole is
// tested in tests/simulation.
#include <catch2/catch.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/negotiation/negotiator.h"
#include "runtime/negotiation/protocol_chooser.h"
#include "runtime/plan/cycle_detector.h"
#include "runtime/plan/follower.h"
#include "runtime/plan/plan_keeper.h"
#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

using negotiation::ProtocolChooser;
using negotiation::Ticket;
using plan::CycleDetector;
using plan::Follower;
using plan::PlanKeeper;
using Batches = std::vector<CycleDetector::Batch>;

// All ranks of a job in one place: what one enters the others see at once.
struct Board {
  explicit Board(size_t ranks) : entered(ranks, 0), revoked(ranks, false) {}
  std::vector<uint64_t> entered;
  std::vector<bool> revoked;
};

class BoardChannel : public plan::PlanChannel {
 public:
  BoardChannel(Board* board, size_t rank) : board_(board), rank_(rank) {}
  void begin(const plan::StepPlan&, const std::vector<const wire::Request*>&) override {
    board_->entered[rank_] = 0;
    board_->revoked[rank_] = false;
    ran = 0;
    taken.clear();
  }
  void enter(std::span<const Ticket> tickets) override {
    taken.emplace_back(tickets.begin(), tickets.end());
    ++board_->entered[rank_];
  }
  uint64_t entered() const override { return board_->entered[rank_]; }
  uint64_t finished() const override { return ran; }
  void revoke() override { board_->revoked[rank_] = true; }
  std::optional<uint64_t> last_word(Rank rank) const override {
    const auto of = static_cast<size_t>(rank);
    if (!board_->revoked[of]) return std::nullopt;
    return board_->entered[of];
  }
  std::vector<Ticket> withdraw(uint64_t first) override {
    std::vector<Ticket> back;
    for (uint64_t n = first; n < taken.size(); ++n)
      back.insert(back.end(), taken[n].begin(), taken[n].end());
    return back;
  }
  uint64_t ran = 0;
  std::vector<std::vector<Ticket>> taken;

 private:
  Board* board_;
  size_t rank_;
};

Ticket ticket(int& of) { return &of; }

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

TEST_CASE("batches are entered whole and in the plan's order, whatever the order of readiness",
          "[plan]") {
  Board board(1);
  BoardChannel channel(&board, 0);
  Follower follower(&channel, 1, std::chrono::seconds(1));
  const auto a = request("a");
  const auto b = request("b");
  const auto c = request("c");
  follower.begin({1, {{CollectiveKind::kAllreduce, {0, 2}}, {CollectiveKind::kAllreduce, {1}}}},
                 {&a, &c, &b}, at(0));
  int ta = 0, tb = 0, tc = 0;
  for (int round = 0; round < 3; ++round) {
    CHECK_FALSE(follower.submit(1, ticket(tb), at(0)));  // its turn comes later
    CHECK_FALSE(follower.submit(2, ticket(tc), at(0)));
    CHECK(follower.holds(1));
    CHECK(follower.submit(0, ticket(ta), at(0)));
    CHECK_FALSE(follower.holds(1));
    const size_t n = static_cast<size_t>(round) * 2;
    REQUIRE(channel.taken.size() == n + 2);
    CHECK(channel.taken[n] == std::vector<Ticket>{&ta, &tc});
    CHECK(channel.taken[n + 1] == std::vector<Ticket>{&tb});
  }
}

TEST_CASE("after a revocation what all had entered runs, the rest comes back in order", "[plan]") {
  Board board(2);
  BoardChannel channel(&board, 0);
  BoardChannel peer(&board, 1);
  Follower follower(&channel, 2, std::chrono::seconds(1));
  const auto a = request("a");
  const auto b = request("b");
  const auto c = request("c");
  const auto kind = CollectiveKind::kAllreduce;
  const plan::StepPlan plan = {1, {{kind, {0}}, {kind, {1}}, {kind, {2}}}};
  peer.begin(plan, {});
  follower.begin(plan, {&a, &b, &c}, at(0));
  int ta = 0, tb = 0, tc = 0;
  follower.submit(2, ticket(tc), at(0));
  follower.submit(0, ticket(ta), at(0));
  follower.submit(1, ticket(tb), at(0));  // all three are entered
  int tnext = 0;
  const Ticket peers[] = {&tnext};
  peer.enter(peers);
  CHECK_FALSE(follower.poll(at(0)));
  peer.revoke();
  CHECK_FALSE(follower.poll(at(0)));  // batch 0 must run first
  CHECK(board.revoked[0]);
  CHECK(follower.why() == "rank 1 left the plan");
  follower.submit(0, ticket(tnext), at(0));  // of the next round: is kept for negotiation
  channel.ran = 1;
  REQUIRE(follower.poll(at(0)));
  const auto back = follower.take_back();
  REQUIRE(back.size() == 3);
  CHECK(back[0].ticket == &tb);
  CHECK(back[1].ticket == &tc);
  CHECK(back[2].ticket == &tnext);
  CHECK(follower.stamp() == 2);
  CHECK_FALSE(follower.poll(at(0)));
}

TEST_CASE("a plan that stands still is given up, one that nobody uses is not", "[plan]") {
  Board board(2);
  BoardChannel channel(&board, 0);
  Follower follower(&channel, 2, std::chrono::seconds(1));
  const auto a = request("a");
  const auto b = request("b");
  const auto kind = CollectiveKind::kAllreduce;
  follower.begin({1, {{kind, {0}}, {kind, {1}}}}, {&a, &b}, at(0));
  follower.poll(at(100));
  CHECK_FALSE(follower.revoked());
  CHECK_FALSE(follower.next_deadline());
  int tb = 0;
  follower.submit(1, ticket(tb), at(100));  // its predecessor never comes, and nobody blocks
  CHECK(follower.next_deadline() == at(101));
  follower.poll(at(100.9));
  CHECK_FALSE(follower.revoked());
  follower.poll(at(101));
  CHECK(follower.revoked());
}

TEST_CASE("batches that always overlap go through windows, and a plan need not wait for more",
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

TEST_CASE("a protocol may be forced", "[protocols]") {
  ProtocolChooser protocols("cma");
  CHECK(protocols.choose(CollectiveKind::kAllreduce, 1 << 20, at(0)) == ProtocolChooser::kStaged);
  protocols.set_cma_available(true);
  CHECK(protocols.choose(CollectiveKind::kAllreduce, 1 << 20, at(0)) == ProtocolChooser::kCma);
  CHECK(protocols.settled(CollectiveKind::kAllreduce, 1 << 20));
}

}  // namespace
}  // namespace rueda::testing

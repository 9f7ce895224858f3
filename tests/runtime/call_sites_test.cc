// Disagreements are told with the lines of the program that disagree: the root asks before it
// tells.
#include "runtime/negotiation/call_sites.h"

#include <catch2/catch.hpp>

#include "tests/runtime/virtual_world.h"

namespace rueda::testing {
namespace {

// Two ranks that disagree about x; what they are asked for.
struct Disagreement {
  VirtualWorld world{2, {}};
  Disagreement(const wire::Request& one, const wire::Request& other) {
    world.root.enable_call_sites();
    REQUIRE(world.submit(0, {one}, 0).ok());
    REQUIRE(world.submit(1, {other}, 0).ok());
  }
  std::vector<std::string> asked(double now) {
    const auto list = world.root.take_responses(at(now));
    if (!list) return {};
    CHECK(list->responses.empty());
    return list->where;
  }
  void answer(Rank rank, const std::string& name, const std::string& place) {
    wire::RequestList list;
    list.call_sites = {{name, place}};
    REQUIRE(world.root.on_requests(rank, list, at(0)).ok());
  }
  std::string told(Rank rank, const std::string& name) {
    const auto& last = world.ranks[static_cast<size_t>(rank)].last;
    const auto it = last.find(name);
    return it == last.end() ? "" : it->second.message();
  }
};

TEST_CASE("who disagrees is asked once, and told when all have answered", "[call_sites]") {
  Disagreement test(request("x"), request("x", 5));
  CHECK(test.asked(0) == std::vector<std::string>{"allreduce.x"});
  CHECK(test.asked(0).empty());
  test.answer(0, "allreduce.x", "train.py:1 in a");
  test.answer(0, "allreduce.other", "train.py:7 in c");  // nobody asked
  test.answer(0, "allreduce.x", "train.py:9 in b");      // too much
  CHECK(test.asked(0).empty());
  test.answer(1, "allreduce.x", "train.py:2 in b");
  CHECK(test.world.deliver(0).size() == 1);
  for (const Rank rank : {0, 1}) {
    CHECK(contains(test.told(rank, "allreduce.x"), "rank 0 sent float32[4] at train.py:1 in a; "));
    CHECK(contains(test.told(rank, "allreduce.x"), "rank 1 sent float32[5] at train.py:2 in b; "));
  }
  CHECK_FALSE(test.world.root.next_deadline());
}

TEST_CASE("who does not answer is not waited for long", "[call_sites]") {
  Disagreement test(request("x"), request("x", 5));
  CHECK(test.asked(0).size() == 1);
  test.answer(1, "allreduce.x", "train.py:2 in b");
  CHECK(test.asked(0.9).empty());
  REQUIRE(test.world.root.next_deadline());
  CHECK(*test.world.root.next_deadline() <= at(1));
  CHECK(test.world.deliver(1).size() == 1);
  CHECK(contains(test.told(0, "allreduce.x"),
                 "rank 0 sent float32[4]; rank 1 sent float32[5] at train.py:2 in b"));
}

TEST_CASE("a rank that leaves is told before its leaving is answered", "[call_sites]") {
  Disagreement test(request("x"), request("x", 5));
  CHECK(test.asked(0).size() == 1);
  test.world.root.on_leave(1, at(0));
  CHECK(test.world.deliver(0).size() == 1);
  CHECK(contains(test.told(1, "allreduce.x"), "Mismatched ALLREDUCE tensor shapes"));
}

TEST_CASE("two kinds under one name are told with their places", "[call_sites]") {
  Disagreement test(request("x"), request("x", 4, CollectiveKind::kBroadcast));
  CHECK(test.asked(0.04).empty());
  CHECK(test.asked(0.06) == std::vector<std::string>{"allreduce.x", "broadcast.x"});
  test.answer(0, "allreduce.x", "train.py:1 in a");
  test.answer(1, "broadcast.x", "train.py:2 in b");
  CHECK(test.world.deliver(0.06).size() == 2);
  CHECK(test.told(0, "allreduce.x") ==
        "Mismatched operations: 'x': rank 0 sent allreduce at train.py:1 in a; rank 1 sent "
        "broadcast at "
        "train.py:2 in b; make all ranks submit the same");
  CHECK(test.told(0, "allreduce.x") == test.told(1, "broadcast.x"));
}

TEST_CASE("two kinds under one name that meet after all are no error", "[call_sites]") {
  Disagreement test(request("x"), request("x", 4, CollectiveKind::kBroadcast));
  CHECK(test.asked(0.06).size() == 2);
  REQUIRE(test.world.submit(1, {request("x")}, 0.06).ok());
  CHECK(test.world.deliver(0.06) == std::vector<std::vector<std::string>>{{"allreduce.x"}});
  test.answer(0, "allreduce.x", "train.py:1 in a");
  test.answer(1, "broadcast.x", "train.py:2 in b");
  CHECK(test.world.deliver(0.06).empty());
  REQUIRE(test.world.submit(0, {request("x", 4, CollectiveKind::kBroadcast)}, 0.07).ok());
  CHECK(test.world.deliver(0.07) == std::vector<std::vector<std::string>>{{"broadcast.x"}});
}

// The freeze takes out of the table what waits for the next round. What is held back for its call
// sites is in no table: ranks would hand it to the plan, and its error would find nobody.
TEST_CASE("no step plan is frozen while an error is held back", "[call_sites]") {
  Config config;
  config.fusion_threshold_bytes = 16;  // each tensor goes alone
  VirtualWorld world(2, config);
  world.root.enable_call_sites();
  world.root.enable_plans();
  using Names = std::vector<std::vector<std::string>>;
  const Names a{{"allreduce.a"}};
  const Names b{{"allreduce.b"}};
  for (const Names& batch : {a, b, a, b, a}) {
    const std::string name = batch[0][0].substr(batch[0][0].find('.') + 1);
    REQUIRE(world.submit_all({request(name)}, 0).ok());
    REQUIRE(world.deliver(0) == batch);
  }
  REQUIRE(world.submit(0, {request("a"), request("b")}, 0).ok());
  REQUIRE(world.submit(1, {request("a", 5), request("b")}, 0).ok());
  CHECK(world.deliver(0) == b);  // and no freeze, though the cycle has come three times
  for (const Rank rank : {0, 1}) {
    wire::RequestList answer;
    answer.call_sites = {{"allreduce.a", "train.py:1 in f"}};
    REQUIRE(world.root.on_requests(rank, answer, at(0)).ok());
  }
  CHECK(world.deliver(0) == Names{{"!allreduce.a"}, {}});  // the error, and behind it the freeze
  for (const VirtualRank& rank : world.ranks) CHECK(rank.pending.empty());
}

}  // namespace
}  // namespace rueda::testing

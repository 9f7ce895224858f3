#include "runtime/negotiation/root.h"

#include <catch2/catch.hpp>

#include "tests/runtime/virtual_world.h"

namespace rueda::testing {
namespace {

using Names = std::vector<std::vector<std::string>>;

TEST_CASE("tensors go out in the order in which their last rank had them ready", "[root]") {
  VirtualWorld world(2, {});
  auto a = request("a");
  auto b = request("b", 4, CollectiveKind::kBroadcast);
  REQUIRE(world.submit(0, {a, b}, 0).ok());
  CHECK(world.deliver(0).empty());
  REQUIRE(world.submit(1, {b}, 0).ok());
  CHECK(world.deliver(0) == Names{{"broadcast.b"}});
  REQUIRE(world.submit(1, {a}, 0).ok());
  CHECK(world.deliver(0) == Names{{"allreduce.a"}});
}

TEST_CASE("neighbours that fit are fused the first time", "[root]") {
  Config config;
  config.fusion_threshold_bytes = 48;
  VirtualWorld world(2, config);
  auto other_type = request("d");
  other_type.dtype = DType::kInt32;
  REQUIRE(
      world.submit_all({request("a"), request("b"), request("c"), request("e", 1), other_type}, 0)
          .ok());
  CHECK(world.deliver(0) ==
        Names{{"allreduce.a", "allreduce.b", "allreduce.c"}, {"allreduce.e"}, {"allreduce.d"}});
}

TEST_CASE("gathered tensors count with what every rank receives", "[root]") {
  Config config;
  config.fusion_threshold_bytes = 64;  // two ranks of 16 bytes each, twice
  VirtualWorld world(2, config);
  const auto gather = [](const char* name) { return request(name, 4, CollectiveKind::kAllgather); };
  REQUIRE(world.submit_all({gather("a"), gather("b"), gather("c")}, 0).ok());
  CHECK(world.deliver(0) == Names{{"allgather.a", "allgather.b"}, {"allgather.c"}});
}

TEST_CASE("the second round goes by number and as one batch", "[root]") {
  VirtualWorld world(2, {});
  const std::vector<wire::Request> step = {request("a"), request("b"), request("c")};
  for (double round = 0; round < 2; ++round) {
    REQUIRE(world.submit_all(step, round / 10).ok());
    world.deliver(round / 10);
  }
  const auto list = world.list(1, step);
  CHECK(list.requests.empty());
  CHECK(list.cached.size() == 3);
  REQUIRE(world.root.on_requests(1, list, at(1)).ok());
  REQUIRE(world.submit(0, {request("c")}, 1).ok());
  CHECK(world.deliver(1).empty());  // held for its batch
  CHECK(world.root.next_deadline());
  REQUIRE(world.submit(0, {request("b"), request("a")}, 1).ok());
  CHECK(world.deliver(1) == Names{{"allreduce.a", "allreduce.b", "allreduce.c"}});
}

TEST_CASE("a group is all or nothing", "[root]") {
  VirtualWorld world(2, {});
  const auto x = grouped(request("x"), "allreduce.x", 2);
  const auto y = grouped(request("y"), "allreduce.x", 2);
  for (int round = 0; round < 3; ++round) {
    REQUIRE(world.submit(0, {x, y}, round).ok());
    CHECK(world.deliver(round).empty());
    REQUIRE(world.submit(1, {y, x}, round).ok());
    const auto sent = world.deliver(round);
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].size() == 2);
  }
}

TEST_CASE("one member's disagreement fails the group on all ranks and leaves nothing behind",
          "[root]") {
  VirtualWorld world(2, {});
  const auto x = grouped(request("x"), "allreduce.x", 2);
  const auto y = grouped(request("y"), "allreduce.x", 2);
  const auto wrong = grouped(request("y", 5), "allreduce.x", 2);
  for (int round = 0; round < 3; ++round) {
    REQUIRE(world.submit(0, {x, y}, round).ok());
    REQUIRE(world.submit(1, {x, wrong}, round).ok());
    world.deliver(round);
    for (const VirtualRank& rank : world.ranks) {
      CHECK(rank.pending.empty());
      CHECK(contains(rank.last.at("allreduce.x").message(), "'y'"));
      CHECK(rank.last.at("allreduce.x").message() == rank.last.at("allreduce.y").message());
    }
  }
  REQUIRE(world.submit_all({x, y}, 9).ok());
  world.deliver(9);
  for (const VirtualRank& rank : world.ranks) CHECK(rank.last.at("allreduce.x").ok());
}

TEST_CASE("groups of different size fail whole, also the member that only one rank has", "[root]") {
  VirtualWorld world(2, {});
  const auto group_of = [](const std::vector<std::string>& names) {
    std::vector<wire::Request> members;
    for (const auto& name : names)
      members.push_back(grouped(request(name), "allreduce.x", static_cast<uint32_t>(names.size())));
    return members;
  };
  REQUIRE(world.submit(0, group_of({"x", "y", "z"}), 0).ok());
  REQUIRE(world.submit(1, group_of({"x", "y"}), 0).ok());
  world.deliver(0);
  for (const VirtualRank& rank : world.ranks) {
    CHECK(rank.pending.empty());
    CHECK(contains(rank.last.at("allreduce.x").message(), "of 3"));
  }
  CHECK(contains(world.ranks[0].last.at("allreduce.z").message(), "of 3"));
  // The name of the group is not poisoned.
  REQUIRE(world.submit_all(group_of({"x", "y"}), 1).ok());
  world.deliver(1);
  for (const VirtualRank& rank : world.ranks) CHECK(rank.last.at("allreduce.x").ok());
}

TEST_CASE("a group whose ready member waits for one that disagrees elsewhere ends too", "[root]") {
  VirtualWorld world(2, {});
  // Rank 1 calls the second member outside the group.
  REQUIRE(
      world
          .submit(
              0, {grouped(request("x"), "allreduce.x", 2), grouped(request("y"), "allreduce.x", 2)},
              0)
          .ok());
  REQUIRE(world.submit(1, {request("y")}, 0).ok());
  world.deliver(0);
  CHECK(world.ranks[0].pending.empty());
  CHECK(world.ranks[1].pending.empty());
  CHECK(contains(world.ranks[0].last.at("allreduce.x").message(), "outside a group"));
}

TEST_CASE("an awaited tensor cuts its batch; one heard of too late does not cut the next round",
          "[root]") {
  VirtualWorld world(2, {});
  const std::vector<wire::Request> step = {request("a"), request("b")};
  for (int round = 0; round < 2; ++round) {
    REQUIRE(world.submit_all(step, round).ok());
    world.deliver(round);
  }
  // The batch has gone out; rank 1's message about its waiting thread arrives only now.
  REQUIRE(world.await(1, "allreduce.a", 2).ok());
  REQUIRE(world.submit_all({request("a")}, 2).ok());
  CHECK(world.deliver(2).empty());
  REQUIRE(world.submit_all({request("b")}, 2).ok());
  CHECK(world.deliver(2) == Names{{"allreduce.a", "allreduce.b"}});
  // Now somebody is blocked on a and has not submitted b: at once.
  REQUIRE(world.submit_all({request("a")}, 3).ok());
  CHECK(world.deliver(3).empty());
  REQUIRE(world.await(1, "allreduce.a", 3).ok());
  CHECK(world.deliver(3) == Names{{"allreduce.a"}});
}

TEST_CASE("a tensor awaited before it is ready goes out when it is", "[root]") {
  VirtualWorld world(2, {});
  for (int round = 0; round < 2; ++round) {
    REQUIRE(world.submit_all({request("a"), request("b")}, round).ok());
    world.deliver(round);
  }
  REQUIRE(world.submit(1, {request("b")}, 2).ok());
  REQUIRE(world.await(1, "allreduce.b", 2).ok());
  CHECK(world.deliver(2).empty());
  REQUIRE(world.submit(0, {request("b")}, 2).ok());
  CHECK(world.deliver(2) == Names{{"allreduce.b"}});
}

TEST_CASE("what is held goes out before the answer to a leaving rank", "[root]") {
  VirtualWorld world(2, {});
  for (int round = 0; round < 2; ++round) {
    REQUIRE(world.submit_all({request("a"), request("b")}, round).ok());
    world.deliver(round);
  }
  REQUIRE(world.submit_all({request("a")}, 2).ok());
  REQUIRE(world.submit(0, {request("b")}, 2).ok());
  wire::RequestList leaving;
  leaving.leaving = true;
  REQUIRE(world.root.on_requests(1, leaving, at(2)).ok());
  const auto sent = world.deliver(2);
  for (const VirtualRank& rank : world.ranks) CHECK(rank.last.at("allreduce.a").ok());
  CHECK(world.ranks[0].last.at("allreduce.b").code() == Code::kCancelled);
  CHECK(contains(world.ranks[0].last.at("allreduce.b").message(), "rank 1 (test)"));
  REQUIRE(world.submit(0, {request("later")}, 3).ok());
  world.deliver(3);
  CHECK(contains(world.ranks[0].last.at("allreduce.later").message(), "rank 1 (test)"));
  world.root.on_leave(1, at(0));  // again: nothing
  CHECK_FALSE(world.root.take_responses(at(4)));
}

TEST_CASE("a list with an unknown number or splits for another world is refused", "[root]") {
  VirtualWorld world(2, {});
  wire::RequestList list;
  list.cached = {3};
  CHECK(world.root.on_requests(1, list, at(0)).code() == Code::kDataLoss);
  list = {};
  list.requests = {request("t", 4, CollectiveKind::kAlltoall)};
  list.requests[0].splits = {1, 1, 1};
  CHECK(world.root.on_requests(1, list, at(0)).code() == Code::kDataLoss);
}

TEST_CASE("a stall is told to the ranks after a second and logged at doubling times", "[root]") {
  Config config;
  config.stall_check_seconds = 10;
  VirtualWorld world(3, config);
  REQUIRE(world.submit(0, {request("a")}, 0).ok());
  REQUIRE(world.submit(2, {request("a")}, 0).ok());
  std::vector<int> told;
  std::vector<int> warned;
  for (int second = 0; second <= 60; ++second) {
    REQUIRE(world.root.next_deadline());
    for (const auto& report : world.root.check_stalls(at(second))) {
      CHECK(report.stall.name == "allreduce.a");
      CHECK(report.stall.missing == std::vector<int32_t>{1});
      (report.warning.empty() ? told : warned).push_back(second);
      if (report.warning.empty()) continue;
      CHECK(contains(report.warning, "allreduce 'a'"));
      CHECK(contains(report.warning, "ranks 0, 2"));
      CHECK(contains(report.warning, "rank 1 (test)"));
    }
  }
  CHECK(told == std::vector<int>{1});
  CHECK(warned == std::vector<int>{10, 20, 40});
  REQUIRE(world.submit(1, {request("a")}, 61).ok());
  CHECK(world.root.check_stalls(at(62)).empty());
  CHECK(world.deliver(62) == Names{{"allreduce.a"}});
  CHECK_FALSE(world.root.next_deadline());
}

TEST_CASE("an error says which ranks it does not concern", "[root]") {
  Config config;
  config.stall_shutdown_seconds = 3;
  VirtualWorld world(3, config);
  for (const Rank rank : {0, 2}) REQUIRE(world.submit(rank, {request("a")}, 0).ok());
  world.root.check_stalls(at(3.5));
  const auto list = world.root.take_responses(at(3.5));
  REQUIRE(list);
  REQUIRE(list->responses.size() == 1);
  CHECK(list->responses.front().entries.front().absent == std::vector<int32_t>{1});
}

TEST_CASE("stall shutdown fails the tensor, its group too, and says who was missing", "[root]") {
  Config config;
  config.stall_shutdown_seconds = 3;
  VirtualWorld world(2, config);
  REQUIRE(world
              .submit(0,
                      {request("a"), grouped(request("x"), "allreduce.x", 2),
                       grouped(request("y"), "allreduce.x", 2)},
                      0)
              .ok());
  for (double second = 0; second < 3; second += 0.5) world.root.check_stalls(at(second));
  CHECK(world.deliver(2.9).empty());
  world.root.check_stalls(at(3.5));
  world.deliver(3.5);
  CHECK(world.ranks[0].pending.empty());
  for (const char* name : {"allreduce.a", "allreduce.x", "allreduce.y"}) {
    CHECK(world.ranks[0].last.at(name).code() == Code::kDeadlineExceeded);
    CHECK(contains(world.ranks[0].last.at(name).message(), "rank 1 (test)"));
  }
  REQUIRE(world.submit_all({request("a")}, 4).ok());
  CHECK(world.deliver(4) == Names{{"allreduce.a"}});
}

TEST_CASE("one name in two kinds is an error after a moment of silence", "[root]") {
  VirtualWorld world(2, {});
  REQUIRE(world.submit(0, {request("x")}, 0).ok());
  REQUIRE(world.submit(1, {request("x", 4, CollectiveKind::kBroadcast)}, 0).ok());
  CHECK(world.deliver(0.04).empty());
  REQUIRE(world.root.next_deadline());
  CHECK(*world.root.next_deadline() <= at(0.05));
  world.deliver(0.051);
  CHECK(contains(world.ranks[0].last.at("allreduce.x").message(), "Mismatched operations"));
  CHECK(world.ranks[0].last.at("allreduce.x").message() ==
        world.ranks[1].last.at("broadcast.x").message());
}

}  // namespace
}  // namespace rueda::testing

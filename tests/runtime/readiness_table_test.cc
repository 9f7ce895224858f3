#include "runtime/negotiation/readiness_table.h"

#include <catch2/catch.hpp>

#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

using negotiation::ReadinessTable;

TEST_CASE("a tensor is decided by its last rank, whatever the order", "[readiness]") {
  ReadinessTable table(rank_names(3));
  CHECK_FALSE(table.add(2, share(request("a")), at(0)));
  CHECK_FALSE(table.add(0, share(request("a")), at(1)));
  CHECK(table.submitted(2, "allreduce.a"));
  CHECK_FALSE(table.submitted(1, "allreduce.a"));
  const auto decision = table.add(1, share(request("a")), at(2));
  REQUIRE(decision);
  CHECK(decision->status.ok());
  CHECK(decision->by_rank.size() == 3);
  CHECK(table.empty());
}

TEST_CASE("disagreeing ranks decide with an error and the name is free again", "[readiness]") {
  ReadinessTable table(rank_names(2));
  CHECK_FALSE(table.add(0, share(request("a", 4)), at(0)));
  CHECK_FALSE(table.add(1, share(request("a", 5)), at(0))->status.ok());
  CHECK_FALSE(table.add(0, share(request("a", 4)), at(1)));
  CHECK(table.add(1, share(request("a", 4)), at(1))->status.ok());
}

TEST_CASE("a second submission of one rank does not count as another rank's", "[readiness]") {
  ReadinessTable table(rank_names(2));
  CHECK_FALSE(table.add(0, share(request("a")), at(0)));
  CHECK_FALSE(table.add(0, share(request("a")), at(0)));
  CHECK(table.add(1, share(request("a")), at(0)));
}

TEST_CASE("who waits for a rank that leaves gets an error that names it", "[readiness]") {
  ReadinessTable table(rank_names(3));
  CHECK_FALSE(table.add(0, share(request("a")), at(0)));
  CHECK_FALSE(table.add(1, share(request("b")), at(0)));
  CHECK_FALSE(table.add(0, share(request("b")), at(0)));
  CHECK_FALSE(table.add(1, share(request("mine")), at(0)));
  const auto decisions = table.leave(1);  // nobody else waits for "mine"
  REQUIRE(decisions.size() == 2);
  for (const auto& decision : decisions) {
    CHECK(decision.status.code() == Code::kCancelled);
    CHECK(contains(decision.status.message(), "rank 1 (test)"));
    CHECK(contains(decision.status.message(), decision.request().name.substr(10)));
    CHECK(decision.by_rank[1] == nullptr);
  }
  CHECK(table.empty());
  const auto later = table.add(2, share(request("c")), at(1));
  REQUIRE(later);
  CHECK(contains(later->status.message(), "rank 1 (test)"));
  CHECK(table.empty());
}

TEST_CASE("the stall report lists the oldest first, with ready and missing ranks", "[readiness]") {
  ReadinessTable table(rank_names(3));
  CHECK_FALSE(table.add(1, share(request("new")), at(2)));
  CHECK_FALSE(table.add(0, share(request("old")), at(1)));
  CHECK_FALSE(table.add(2, share(request("old")), at(3)));
  const auto waiting = table.waiting();
  REQUIRE(waiting.size() == 2);
  CHECK(waiting[0].name == "allreduce.old");
  CHECK(waiting[0].since == at(1));
  CHECK(waiting[0].ready == std::vector<Rank>{0, 2});
  CHECK(waiting[0].missing == std::vector<Rank>{1});
  CHECK(waiting[1].missing == std::vector<Rank>{0, 2});
}

TEST_CASE("a tensor that waits can be failed once", "[readiness]") {
  ReadinessTable table(rank_names(2));
  CHECK_FALSE(table.fail("allreduce.a", internal_error("x")));
  CHECK_FALSE(table.add(0, share(grouped(request("a"), "g", 2)), at(0)));
  CHECK(table.members_of("g") == std::vector<std::string>{"allreduce.a"});
  CHECK(table.fail("allreduce.a", internal_error("x"))->status.message() == "x");
  CHECK_FALSE(table.fail("allreduce.a", internal_error("x")));
  CHECK(table.members_of("g").empty());
}

}  // namespace
}  // namespace rueda::testing

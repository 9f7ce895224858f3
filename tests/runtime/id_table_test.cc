// Which ids the root gives, and which it takes back.
#include "runtime/negotiation/id_table.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

using negotiation::IdTable;
using negotiation::RequestPtr;
using negotiation::Requests;
using plan::CacheId;

constexpr Rank kRanks = 2;

std::vector<RequestPtr> by_all(const wire::Request& r) { return {share(r), share(r)}; }

struct Table : IdTable {
  explicit Table(size_t capacity) : IdTable(capacity, kRanks) {}
  // All ranks ask for this.
  std::optional<CacheId> give(const std::vector<RequestPtr>& by_rank) {
    if (const auto known = find(by_rank)) {
      use(*known);
      return known;
    }
    return assign({Requests(by_rank), nullptr, 0});
  }
  std::optional<CacheId> give(const wire::Request& r) { return give(by_all(r)); }
  std::optional<CacheId> give(const std::string& name) { return give(request(name)); }
  std::vector<CacheId> evicted() {
    std::vector<CacheId> ids;
    for (const Gone& gone : take_evicted()) ids.push_back(gone.id);
    return ids;
  }
};

TEST_CASE("a request keeps its id, another gets its own", "[cache]") {
  Table table(8);
  CHECK_FALSE(table.find(by_all(request("a"))));
  CHECK(table.give("a") == 0u);
  CHECK(table.give("a") == 0u);
  CHECK(table.give("b") == 1u);
  CHECK(*table.get(1)->requests.first() == request("b"));
  CHECK(table.get(2) == nullptr);
}

TEST_CASE("a tensor that alternates between two shapes does not fill the table", "[cache]") {
  Table table(8);
  for (int round = 0; round < 100; ++round) {
    REQUIRE(table.give(request("a", 4)) == 0u);
    REQUIRE(table.give(request("a", 5)) == 1u);
  }
  CHECK(table.size() == 2);
}

TEST_CASE("an id means what each rank asks", "[cache]") {
  Table table(8);
  const auto mine = share(request("g", 4, CollectiveKind::kAllgather));
  const auto other = share(request("g", 5, CollectiveKind::kAllgather));
  CHECK(table.give({mine, mine}) == 0u);
  CHECK(table.give({mine, other}) == 1u);
  CHECK(table.give({other, mine}) == 2u);
  CHECK(table.give({mine, other}) == 1u);
  CHECK(*table.meaning(0, 1) == *mine);
  CHECK(*table.meaning(1, 1) == *other);
  CHECK_FALSE(table.find({mine, nullptr}).value_or(9) == 1u);  // sizes of one that has joined
}

TEST_CASE("a full table forgets what was unused for longest, and counts no more than it may",
          "[cache]") {
  Table table(2);
  REQUIRE(table.give("a") == 0u);
  REQUIRE(table.give("b") == 1u);
  table.next_list();
  REQUIRE(table.give("a") == 0u);
  table.next_list();
  CHECK(table.give("c") == 2u);
  CHECK(table.evicted() == std::vector<CacheId>{1});
  CHECK(table.size() == 2);
  CHECK(table.get(1) == nullptr);
  CHECK(table.get(0) != nullptr);
  table.next_list();
  CHECK(table.give("b") == 3u);  // never the same id again
  CHECK_FALSE(Table(0).give("a"));
}

TEST_CASE("what is about to be used is not taken back", "[cache]") {
  Table table(2);
  REQUIRE(table.give("a") == 0u);
  REQUIRE(table.give("b") == 1u);
  CHECK_FALSE(table.give("c"));  // the list that is being made speaks of both
  table.next_list();
  table.hold(0, true);
  table.begin_plan({1});
  CHECK_FALSE(table.give("c"));
  table.end_plan();
  CHECK(table.give("c") == 2u);
  CHECK(table.evicted() == std::vector<CacheId>{1});
  table.next_list();
  table.hold(0, false);
  CHECK(table.give("d") == 3u);
  CHECK(table.evicted() == std::vector<CacheId>{0});
}

TEST_CASE("an id that was taken back means what it meant until all ranks have handled that",
          "[cache]") {
  Table table(1);
  REQUIRE(table.give("a") == 0u);
  table.next_list();
  REQUIRE(table.give("b") == 1u);
  CHECK_FALSE(table.on_handled(0, 1));  // nobody has been told yet
  table.next_list();
  CHECK(*table.meaning(1, 0) == request("a"));
  CHECK(table.on_handled(0, 1));
  CHECK(*table.meaning(1, 0) == request("a"));  // a message may be under way
  CHECK(table.on_handled(1, 1));
  CHECK(table.meaning(1, 0) == nullptr);
  CHECK_FALSE(table.on_handled(1, 2));
}

TEST_CASE("nobody waits for a rank that has joined to handle what it is told", "[cache]") {
  Table table(1);
  REQUIRE(table.give("a") == 0u);
  table.next_list();
  REQUIRE(table.give("b") == 1u);
  table.next_list();
  REQUIRE(table.on_handled(0, 1));
  table.on_silent(1);
  CHECK(table.meaning(0, 0) == nullptr);
  table.on_end_join();
  CHECK(table.on_handled(1, 1));
  table.next_list();
  REQUIRE(table.give("c") == 2u);
  table.next_list();
  REQUIRE(table.on_handled(0, 2));
  CHECK(*table.meaning(1, 1) == request("b"));  // it speaks again
}

TEST_CASE("names of one use and what changes the group have no ids", "[cache]") {
  Table table(8);
  wire::Request join = request("join");
  join.kind = CollectiveKind::kJoin;
  CHECK_FALSE(table.give(join));
  CHECK_FALSE(table.give("noname.grouped.3"));  // used once
  for (const auto kind :
       {CollectiveKind::kAllreduce, CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
        CollectiveKind::kReducescatter, CollectiveKind::kAlltoall, CollectiveKind::kBarrier}) {
    CHECK(table.give(request("k", 4, kind)));
  }
}

TEST_CASE("unnamed operations leave room for named ones", "[cache]") {
  Table table(8);
  CHECK(table.give(request("noname.3", 1)) == 0u);
  CHECK(table.give(request("noname.3", 2)) == 1u);
  table.next_list();
  CHECK(table.give(request("noname.3", 3)) == 2u);
  CHECK(table.evicted() == std::vector<CacheId>{0});
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) CHECK(table.give(name));
  CHECK(table.evicted().empty());
  CHECK(table.size() == 8);
}

}  // namespace
}  // namespace rueda::testing

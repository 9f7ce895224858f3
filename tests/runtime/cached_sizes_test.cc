// Allgathers and alltoalls by id and in step plans, and ids that are forgotten: whole ranks.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "proto/negotiation_codec.h"
#include "tests/runtime/agreeing_ranks.h"

namespace rueda::testing {
namespace {

using Kind = CollectiveKind;

wire::Request rows(int64_t count, const std::string& name = "g", int64_t room = -1) {
  wire::Request r = request(name, count, Kind::kAllgather);
  r.output_rows = room;
  return r;
}
wire::Request exchange(std::vector<int64_t> splits, int64_t room = -1) {
  wire::Request r = request("x", 0, Kind::kAlltoall);
  for (const int64_t to : splits) r.shape[0] += to;
  r.splits = std::move(splits);
  r.output_rows = room;
  return r;
}

bool says(const std::string& text, const std::string& room, const std::string& arrives) {
  return contains(text, "output rows") && contains(text, room) && contains(text, arrives);
}

struct Ranks : AgreeingRanks {
  using AgreeingRanks::AgreeingRanks;
  // Each rank submits its own and waits for it.
  std::vector<Op*> round(const std::vector<wire::Request>& by_rank) {
    std::vector<Op*> ops;
    for (size_t rank = 0; rank < by_rank.size(); ++rank)
      ops.push_back(&submit(static_cast<Rank>(rank), by_rank[rank], true));
    run();
    return ops;
  }
  int64_t sent() const {
    int64_t all = 0;
    for (const Member& member : ranks) all += member.sent;
    return all;
  }
  bool planned() {
    bool all = true;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      all &= of(static_cast<Rank>(rank)).planning();
    return all;
  }
  std::string gave_up() const {
    for (const Member& member : ranks)
      if (!member.gave_up.empty()) return member.gave_up;
    return "";
  }
};

TEST_CASE("rows of their own go by id once they came twice, and then by the plan", "[cache]") {
  Ranks world(3);
  const std::vector<wire::Request> each = {rows(4), rows(0), rows(7)};
  for (int i = 0; i < 2; ++i) world.round(each);
  CHECK(world.ranks[1].asked.back() == "allgather.g");
  world.round(each);
  CHECK(world.ranks[1].asked.back() == "allgather.g by id");
  CHECK(world.ranks[1].sizes.back() == Sizes{4, 0, 7});
  for (int i = 0; i < 3; ++i) world.round(each);
  REQUIRE(world.planned());
  for (const auto& member : world.ranks)
    CHECK(member.planned_sizes == std::vector<Sizes>{Sizes{4, 0, 7}});
  const int64_t before = world.sent();
  for (int i = 0; i < 10; ++i) world.round(each);
  CHECK(world.sent() == before);
  CHECK(world.all_done());
}

TEST_CASE("all five kinds with a barrier between them are one plan", "[cache]") {
  Ranks world(2);
  const auto step = [&] {
    for (Rank rank = 0; rank < 2; ++rank) {
      world.submit(rank, request("sum"));
      world.submit(rank, rows(3 + rank, "g", 7));
      world.submit(rank,
                   exchange(rank == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{4, 0},
                            rank == 0 ? 5 : 2));
      world.submit(rank, request("r", 4, Kind::kReducescatter));
      world.submit(rank, request("b", 4, Kind::kBroadcast));
      world.submit(rank, request("all", 0, Kind::kBarrier));
    }
    world.run();
  };
  for (int i = 0; i < 12; ++i) step();
  REQUIRE(world.planned());
  CHECK(world.ranks[0].planned_sizes.size() == 6);
  const int64_t before = world.sent();
  for (int i = 0; i < 5; ++i) step();
  CHECK(world.sent() == before);
  CHECK(world.all_done());
  CHECK(world.gave_up() == "");
}

TEST_CASE("one rank's other rows are agreed on anew, in and out of a plan", "[cache]") {
  Ranks world(2);
  for (int i = 0; i < 8; ++i) world.round({rows(4), rows(5)});
  REQUIRE(world.planned());
  auto ops = world.round({rows(4), rows(6)});
  CHECK((ops[0]->done && ops[1]->done));
  CHECK_FALSE(world.planned());
  CHECK(world.ranks[0].sizes.back() == Sizes{4, 6});
  CHECK(world.ranks[1].sizes.back() == Sizes{4, 6});
  ops = world.round({rows(4), rows(5)});
  CHECK((ops[0]->done && ops[1]->done));
  CHECK(world.ranks[0].sizes.back() == Sizes{4, 5});
  CHECK(world.gave_up() == "");
}

TEST_CASE("of two agreements with one rank's same request, operations are paired in their order",
          "[cache]") {
  Ranks world(2);
  // Rank 0 always asks the same: nothing tells its rounds apart. Nobody waits.
  const int64_t each = GENERATE(1, 2, 3);
  for (int64_t i = 0; i < 80; ++i) {
    world.submit(0, rows(4));
    world.submit(1, rows(i / each % 2 == 0 ? 5 : 6));
    world.run();
    world.now += 0.1;  // longer than a batch is held back
    world.run();
  }
  world.now += 2;  // longer than a plan may stand still
  world.run();
  CHECK(world.all_done());
  for (const auto& member : world.ranks) {
    CHECK(member.mispaired == 0);
    CHECK(member.entered_sizes_differ == 0);
  }
  CHECK(world.gave_up() == "");
}

TEST_CASE("no plan begins with sizes that are not a name's last", "[cache]") {
  Ranks world(2);
  // No cycle is frozen before its protocol has been measured.
  world.of(0).on(negotiation::event::CmaAvailable{true});
  const wire::Request large = request("large", 1 << 16);
  for (int i = 0; i < 8; ++i) {
    world.step({large});
    world.round({rows(5), rows(4)});
  }
  world.round({rows(6), rows(4)});  // another agreement, not of the cycle
  for (size_t i = 0; i < 2 * negotiation::ProtocolChooser::kTries; ++i) {
    const auto protocol = static_cast<uint32_t>(i % 2);
    world.of(0).on(
        negotiation::event::Measured{Kind::kAllreduce, 4 << 16, protocol, 1000, at(world.now)});
  }
  REQUIRE_FALSE(world.planned());
  world.step({large});  // rank 1 may ask for the same rows by the other id now
  CHECK_FALSE(world.planned());
  for (int i = 0; i < 12; ++i) {
    world.round({rows(5), rows(4)});
    world.step({large});
  }
  CHECK(world.planned());
  CHECK(world.all_done());
}

TEST_CASE("sizes that change now and then are left out of the plan of their step", "[cache]") {
  Ranks world(2);
  int64_t revocations = 0;
  for (int64_t i = 0; i < 150; ++i) {
    if (i == 130) revocations = world.of(0).revocations();
    for (Rank rank = 0; rank < 2; ++rank) {
      world.submit(rank, rows(i / 6 + rank));
      world.submit(rank, request("sum"));
    }
    world.run();
  }
  CHECK(world.all_done());
  CHECK(world.planned());
  CHECK(world.ranks[0].planned.size() == 1);
  CHECK(world.of(0).revocations() == revocations);
}

TEST_CASE("sizes that always change get no id, and the rest of the step is planned without them",
          "[cache]") {
  Ranks world(2);
  int64_t number = 0;
  const auto step = [&] {
    for (Rank rank = 0; rank < 2; ++rank) {
      world.submit(rank, rows(++number));
      world.submit(rank, request("sum"));
    }
    world.run();
  };
  for (int i = 0; i < 12; ++i) step();
  CHECK(world.planned());
  CHECK(world.of(0).known_tensors() == 1);
  CHECK(world.ranks[0].planned_sizes.size() == 1);
  CHECK(world.all_done());
}

TEST_CASE("outputs that have not room for exactly what arrives are refused on every rank",
          "[cache]") {
  Ranks world(2);
  const auto refused = [&](const std::vector<wire::Request>& by_rank) {
    const auto ops = world.round(by_rank);
    CHECK((ops[0]->done && ops[1]->done));
    CHECK(ops[0]->status.message() == ops[1]->status.message());
    return ops[0]->status.message();
  };
  CHECK(says(refused({rows(4, "g", 9), rows(5, "g", 8)}), "8 rows", "9 arrive"));
  CHECK(says(refused({exchange({1, 2}, 5), exchange({4, 0}, 3)}), "3 rows", "2 arrive"));
  CHECK(refused({rows(4, "g", 9), rows(5, "g", 9)}) == "");
  // Known and planned sizes do not hide it when another rank's rows change.
  for (int i = 0; i < 8; ++i) world.round({rows(4, "g", 9), rows(5, "g", 9)});
  REQUIRE(world.planned());
  CHECK(says(refused({rows(4, "g", 9), rows(6, "g", 10)}), "9 rows", "10 arrive"));
}

TEST_CASE("a root that names sizes which are not what a rank has submitted is given up",
          "[cache]") {
  Ranks world(2);
  world.submit(1, rows(5, "g", 9));
  world.of(1).on(negotiation::event::Flush{at(0)});
  wire::ResponseList list;
  list.epoch = 7;
  wire::Response& response = list.responses.emplace_back();
  response.kind = Kind::kAllgather;
  response.entries.emplace_back().name = rows(5).name;
  const std::vector<Sizes> wrong = {{4, 6}, {3, 5}, {4, 5, 0}, {4}, {-4, 5}, {}};
  response.entries.back().first_dims = wrong[static_cast<size_t>(GENERATE(range(0, 6)))];
  world.ranks[1].inbox.emplace_back(0, wire::encode(list));
  world.run();
  CHECK(contains(world.gave_up(), "sizes of allgather 'g'"));
}

TEST_CASE("a full cache forgets by agreement and never stops", "[cache]") {
  Config config;
  config.cache_capacity = 4;
  const Rank size = GENERATE(1, 2, 3);
  Ranks world(size, config);
  const auto all = [&](const std::string& name) {
    world.round(std::vector<wire::Request>(static_cast<size_t>(size), request(name)));
  };
  for (int i = 0; i < 10; ++i) all("t" + std::to_string(i));
  for (Rank rank = 0; rank < size; ++rank) {
    CHECK(world.of(rank).known_tensors() == 4);
    CHECK(world.of(rank).evictions() == 6);
  }
  // What came in later is cached all the same, and planned.
  for (int i = 0; i < 8; ++i) all("late");
  CHECK(world.planned());
  for (int i = 0; i < 10; ++i) all("t" + std::to_string(i));
  CHECK(world.all_done());
  CHECK(world.gave_up() == "");
}

TEST_CASE("an id that is taken back while it is under way means what it meant", "[cache]") {
  Config config;
  config.cache_capacity = 1;
  Ranks world(2, config);
  world.step({request("a")});
  REQUIRE(world.of(1).known_tensors() == 1);
  // Rank 1 sends a's id; before it hears of b's answer, which takes the id back.
  auto& mine = world.submit(1, request("a"));
  auto& other = world.submit(1, request("b"));
  world.of(1).on(negotiation::event::Flush{at(0)});
  world.submit(0, request("b"));
  world.run();
  REQUIRE(other.done);
  CHECK_FALSE(mine.done);
  CHECK(world.of(0).evictions() == 1);
  CHECK(world.of(1).evictions() == 1);
  world.submit(0, request("a"));
  world.run();
  CHECK(mine.done);
  CHECK(world.gave_up() == "");
}

TEST_CASE("what was to be asked for by an id that is taken back is asked for by its name",
          "[cache]") {
  Config config;
  config.cache_capacity = 1;
  Ranks world(2, config);
  world.step({request("a")});
  world.submit(1, request("b"));
  world.of(1).on(negotiation::event::Flush{at(0)});
  world.submit(0, request("b"));
  world.of(0).on(negotiation::event::Flush{at(0)});
  // Collected by id, and told of the eviction before it goes out.
  auto& mine = world.submit(1, request("a"));
  world.deliver();
  REQUIRE(world.of(1).evictions() == 1);
  world.submit(0, request("a"));
  world.run();
  CHECK(mine.done);
  CHECK(world.gave_up() == "");
}

TEST_CASE("ranks whose caches disagree about what was forgotten are given up", "[cache]") {
  Ranks world(2);
  world.step({request("a")});
  wire::RequestList list;
  list.epoch = 7;
  list.evictions = 1;  // of which nobody was told
  world.ranks[0].inbox.emplace_back(1, wire::encode(list));
  world.run();
  CHECK(contains(world.gave_up(), "damaged message from rank 1"));
}

TEST_CASE("a rank that has joined sends no rows, whatever was agreed on before", "[cache]") {
  Ranks world(2);
  for (int i = 0; i < 3; ++i) {
    world.round({rows(4), rows(4)});
    world.round({rows(4, "h", 8), rows(4, "h", 8)});
  }
  REQUIRE(world.ranks[0].asked.back() == "allgather.h by id");
  wire::Request join;
  join.kind = Kind::kJoin;
  join.name = negotiation::kJoinName;
  world.submit(1, join);
  auto& mine = world.submit(0, rows(4));
  world.run();
  CHECK(mine.status.ok());
  CHECK(mine.done);
  CHECK(world.ranks[0].sizes.back() == Sizes{4, 0});
  CHECK(world.ranks[1].sizes.back() == Sizes{4, 0});
  auto& narrow = world.submit(0, rows(4, "h", 8));
  world.run();
  CHECK(says(narrow.status.message(), "8 rows", "4 arrive"));
}

}  // namespace
}  // namespace rueda::testing

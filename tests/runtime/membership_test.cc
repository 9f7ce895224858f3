// Membership: local and cross ranks follow from what ranks say of their hosts.
#include "runtime/membership/membership.h"

#include <catch2/catch.hpp>

namespace rueda::membership {
namespace {

// One letter for each rank's host; pids are 100, 101, ...
std::vector<Introduction> on(const std::string& hosts) {
  std::vector<Introduction> members;
  for (const char host : hosts) {
    const int pid = 100 + static_cast<int>(members.size());
    members.push_back({std::string("id of ") + host, std::string("node ") + host, pid});
  }
  return members;
}

struct Ranks {
  Rank local_rank, local_size, cross_rank, cross_size;
  bool operator==(const Ranks&) const = default;
};

Ranks ranks_of(const Membership& all) {
  return {all.local_rank, all.local_size, all.cross_rank, all.cross_size};
}

TEST_CASE("a rank alone is alone on its host and across hosts", "[membership]") {
  const Membership alone = Membership::of(1, 0, on("a"));
  CHECK(alone.size == 1);
  CHECK(ranks_of(alone) == Ranks{0, 1, 0, 1});
  CHECK(alone.homogeneous);
  CHECK(alone.local_pids() == std::vector<int>{100});
}

TEST_CASE("ranks of a host are counted in their order, however the hosts take turns",
          "[membership]") {
  const Ranks expected[] = {{0, 2, 0, 2}, {0, 2, 1, 2}, {1, 2, 1, 2}, {1, 2, 0, 2}};
  for (Rank rank = 0; rank < 4; ++rank) {
    const Membership all = Membership::of(7, rank, on("abba"));
    INFO(all.own_name());
    CHECK(ranks_of(all) == expected[rank]);
    CHECK(all.epoch == 7);
    CHECK(all.rank == rank);
    CHECK(all.homogeneous);
    CHECK(all.host_of == std::vector<int>{0, 1, 1, 0});
  }
  CHECK(Membership::of(7, 3, on("abba")).local_pids() == std::vector<int>{100, 103});
}

TEST_CASE("a host with fewer ranks is left out where it has none of a local rank", "[membership]") {
  // a: 0, 1, 3; b: 2; c: 4, 5
  const Ranks expected[] = {{0, 3, 0, 3}, {1, 3, 0, 2}, {0, 1, 1, 3},
                            {2, 3, 0, 1}, {0, 2, 2, 3}, {1, 2, 1, 2}};
  for (Rank rank = 0; rank < 6; ++rank) {
    const Membership all = Membership::of(1, rank, on("aabacc"));
    INFO(all.own_name());
    CHECK(ranks_of(all) == expected[rank]);
    CHECK_FALSE(all.homogeneous);
  }
}

TEST_CASE("ranks are named with process and host", "[membership]") {
  const Membership all = Membership::of(1, 1, on("ab"));
  CHECK(all.names ==
        std::vector<std::string>{"rank 0 (pid 100 on node a)", "rank 1 (pid 101 on node b)"});
  CHECK(all.own_name() == all.name(1));
  CHECK(all.hosts == std::vector<std::string>{"node a", "node b"});
  CHECK(all.pids == std::vector<int>{100, 101});
}

TEST_CASE("another epoch has another membership, as a whole", "[membership]") {
  Membership now = Membership::of(1, 2, on("aabb"));
  const Membership next = Membership::of(2, 0, on("bb"));
  now = next;
  CHECK(now.epoch == 2);
  CHECK(now.rank == 0);
  CHECK(now.size == 2);
  CHECK(ranks_of(now) == Ranks{0, 2, 0, 1});
  CHECK(now.names.size() == 2);
}

}  // namespace
}  // namespace rueda::membership

// Who is so much slower than the others that it is better replaced.
#include "launcher/membership/slow_ranks.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace rueda::launcher::membership {
namespace {

using Seconds = std::chrono::duration<double>;

// Members 0 to n-1, each on a host whose clock is its own; they tell once a second.
struct Ranks {
  SlowRanks slow;
  std::vector<double> waited;
  double now = 0;

  Ranks(int count, SlowPolicy policy) : slow(policy), waited(static_cast<size_t>(count)) {
    std::vector<MemberId> members;
    for (size_t i = 0; i < waited.size(); ++i) members.push_back(i);
    slow.begin_epoch(members);
    tell();
  }
  void tell() {
    for (size_t i = 0; i < waited.size(); ++i) {
      const SlowRanks::Time heard{
          std::chrono::duration_cast<SlowRanks::Time::duration>(Seconds(now + 0.01 * double(i)))};
      const double own = now + 1000 * double(i);
      slow.take(i, heard, std::llround(own * 1e9), std::llround(waited[i] * 1e9));
    }
  }
  // For so long; what part of it each is busy.
  void go(int seconds, const std::vector<double>& busy) {
    for (int second = 0; second < seconds; ++second) {
      now += 1;
      for (size_t i = 0; i < busy.size(); ++i) waited[i] += 1 - busy[i];
      tell();
    }
  }
};

}  // namespace

TEST_CASE("a rank that computes while the others wait is slow, after so many seconds", "[slow]") {
  Ranks ranks(4, {3, 8});
  ranks.go(7, {0.2, 0.2, 0.9, 0.2});
  CHECK_FALSE(ranks.slow.look().has_value());
  ranks.go(2, {0.2, 0.2, 0.9, 0.2});
  REQUIRE(ranks.slow.look().has_value());
  CHECK(ranks.slow.look()->member == 2);
  CHECK(ranks.slow.look()->factor == Approx(4.5).epsilon(0.05));
}

TEST_CASE("who is slower than the others by less than the factor stays", "[slow]") {
  Ranks ranks(3, {3, 8});
  ranks.go(20, {0.4, 0.9, 0.4});
  CHECK_FALSE(ranks.slow.look().has_value());
}

TEST_CASE("a pause of less than half of the time makes nobody slow", "[slow]") {
  Ranks ranks(3, {3, 20});
  ranks.go(20, {0.2, 0.2, 0.2});
  for (int second = 0; second < 30; ++second) {
    const double busy = second < 9 ? 1 : 0.2;
    ranks.go(1, {busy, second < 9 ? 0 : 0.2, second < 9 ? 0 : 0.2});
    CHECK_FALSE(ranks.slow.look().has_value());
  }
}

TEST_CASE("steps may take a quarter of the time", "[slow]") {
  Ranks ranks(3, {3, 20});
  for (int step = 0; step < 8; ++step) {
    ranks.go(1, {1, 1, 1});
    ranks.go(4, {0, 1, 0});
  }
  REQUIRE(ranks.slow.look().has_value());
  CHECK(ranks.slow.look()->member == 1);
}

TEST_CASE("who hardly works is not slow because the others work less", "[slow]") {
  Ranks ranks(3, {3, 8});
  ranks.go(20, {0.01, 0.09, 0.01});
  CHECK_FALSE(ranks.slow.look().has_value());
}

TEST_CASE("where two are slow alike nobody is, of two ranks one may be", "[slow]") {
  Ranks three(3, {2, 8});
  three.go(20, {0.9, 0.9, 0.2});
  CHECK_FALSE(three.slow.look().has_value());
  Ranks two(2, {2, 8});
  two.go(20, {0.9, 0.2});
  REQUIRE(two.slow.look().has_value());
  CHECK(two.slow.look()->member == 0);
}

TEST_CASE("a new epoch begins anew, and strangers do not count", "[slow]") {
  Ranks ranks(3, {3, 8});
  ranks.go(20, {0.2, 0.9, 0.2});
  CHECK(ranks.slow.look().has_value());
  ranks.slow.begin_epoch({0, 2});
  CHECK_FALSE(ranks.slow.look().has_value());
  ranks.go(20, {0.2, 0.9, 0.2});
  CHECK_FALSE(ranks.slow.look().has_value());
}

}  // namespace rueda::launcher::membership

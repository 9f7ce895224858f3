// What every Store promises, over the one in memory and over the one behind a socket.
#include <catch2/catch.hpp>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "tests/rendezvous/store_worlds.h"

namespace rueda::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

constexpr auto kLong = 60s;  // for what must happen: never reached when all is well

Result<std::string> taken(std::future<Result<std::string>>& future) { return future.get(); }

template <typename Call>
auto in_thread(Call call) {
  return std::async(std::launch::async, std::move(call));
}

}  // namespace

TEMPLATE_TEST_CASE("what one rank sets another gets, whatever the bytes", "[store]", MemoryWorld,
                   SocketWorld) {
  TestType world(2);
  const std::string all_bytes("\0\xff\x01 value", 9);
  CHECK(world.of(0).set("e1/place/0", all_bytes).to_string() == "ok");
  CHECK(world.of(0).set("e1/empty/0", "").to_string() == "ok");
  CHECK(world.of(1).get("e1/place/0", kLong).value() == all_bytes);
  CHECK(world.of(1).get("e1/empty/0", 0ns).value() == "");
  const std::string largest(kMaxValueBytes, 'x');
  CHECK(world.of(1).set("e1/large/1", largest).to_string() == "ok");
  CHECK(world.of(0).get("e1/large/1", kLong).value() == largest);
}

TEMPLATE_TEST_CASE("a get waits until the key is set", "[store]", MemoryWorld, SocketWorld) {
  TestType world(2);
  auto waiting = in_thread([&] { return world.of(1).get("e1/place/0", kLong); });
  CHECK(world.of(0).set("e1/place/0", "here").ok());
  const auto found = taken(waiting);
  REQUIRE(found.status().to_string() == "ok");
  CHECK(found.value() == "here");
}

TEMPLATE_TEST_CASE("many threads wait on one end at once, each for its own key", "[store]",
                   MemoryWorld, SocketWorld) {
  TestType world(2);
  constexpr int kThreads = 24;
  std::vector<std::future<Result<std::string>>> waiting;
  for (int i = 0; i < kThreads; ++i) {
    waiting.push_back(
        in_thread([&, i] { return world.of(1).get("key/" + std::to_string(1000 + i), kLong); }));
  }
  // Backwards, so that answers do not come in the order of asking.
  for (int i = kThreads - 1; i >= 0; --i) {
    CHECK(world.of(0).set("key/" + std::to_string(1000 + i), std::to_string(i)).ok());
  }
  for (int i = 0; i < kThreads; ++i) {
    const auto found = taken(waiting[static_cast<size_t>(i)]);
    REQUIRE(found.status().to_string() == "ok");
    CHECK(found.value() == std::to_string(i));
  }
}

TEMPLATE_TEST_CASE("every rank of a large world gets every other's place", "[store]", MemoryWorld,
                   SocketWorld) {
  constexpr Rank kSize = 40;
  TestType world(kSize);
  std::vector<std::future<std::string>> ranks;
  for (Rank rank = 0; rank < kSize; ++rank) {
    ranks.push_back(in_thread([&world, rank]() -> std::string {
      const Status set = world.of(rank).set("e1/place/" + std::to_string(rank), "address");
      if (!set.ok()) return set.to_string();
      for (Rank peer = 0; peer < kSize; ++peer) {
        const auto place = world.of(rank).get("e1/place/" + std::to_string(peer), kLong);
        if (!place.ok()) return place.status().to_string();
      }
      return "ok";
    }));
  }
  for (auto& rank : ranks) CHECK(rank.get() == "ok");
}

TEMPLATE_TEST_CASE("a get that ends without the key names key and time", "[store]", MemoryWorld,
                   SocketWorld) {
  TestType world(1);
  const auto found = world.of(0).get("e1/place/7", 5ms);
  CHECK(found.status().code() == Code::kDeadlineExceeded);
  CHECK_THAT(found.status().message(), Contains("key 'e1/place/7' was not set within 0.005 s"));
  CHECK(world.of(0).get("e1/place/7", -1s).status().code() == Code::kDeadlineExceeded);
}

TEMPLATE_TEST_CASE("a key is set once; the same value again is no error", "[store]", MemoryWorld,
                   SocketWorld) {
  TestType world(2);
  CHECK(world.of(0).set("k/0", "a").ok());
  CHECK(world.of(1).set("k/0", "a").ok());
  const Status other = world.of(1).set("k/0", "b");
  CHECK(other.code() == Code::kAlreadyExists);
  CHECK_THAT(other.message(), Contains("'k/0'"));
  CHECK(world.of(1).get("k/0", kLong).value() == "a");
}

TEMPLATE_TEST_CASE("what can be no key or value is refused and harms nothing", "[store]",
                   MemoryWorld, SocketWorld) {
  TestType world(1);
  Store& store = world.of(0);
  CHECK(store.set("", "v").code() == Code::kInvalidArgument);
  CHECK(store.set(std::string(kMaxKeyBytes + 1, 'k'), "v").code() == Code::kInvalidArgument);
  CHECK(store.set("bad\xff", "v").code() == Code::kInvalidArgument);
  CHECK(store.set("k", std::string(kMaxValueBytes + 1, 'v')).code() == Code::kInvalidArgument);
  CHECK(store.get("", 0ns).status().code() == Code::kInvalidArgument);
  CHECK(store.get("bad\xff", 0ns).status().code() == Code::kInvalidArgument);
  CHECK(store.set(std::string(kMaxKeyBytes, 'k'), "v").ok());
}

TEMPLATE_TEST_CASE("a rank's death ends every waiting get of the others with its text", "[store]",
                   MemoryWorld, SocketWorld) {
  TestType world(3);
  const std::string text = "rank 2 (pid 81, host b) was killed by signal 9 before init ended";
  auto for_dead = in_thread([&] { return world.of(0).get("e1/place/2", kLong); });
  auto for_other = in_thread([&] { return world.of(1).get("e1/ready/0", kLong); });
  // A get that asks after the death waits for rank 0, who lives: only the first two must end. The
  // second may ask late as well, so it is freed by the key in that case.
  world.mark_dead(2, text);
  const auto first = taken(for_dead);
  CHECK(first.status().code() == Code::kUnavailable);
  CHECK(first.status().message() == text);
  CHECK(world.of(0).set("e1/ready/0", "r").ok());
  const auto second = taken(for_other);
  CHECK((second.ok() || second.status().message() == text));
}

TEMPLATE_TEST_CASE("a dead rank's keys fail for who asks later, others' keys do not", "[store]",
                   MemoryWorld, SocketWorld) {
  TestType world(3);
  CHECK(world.of(2).set("e1/place/2", "address").ok());
  CHECK(world.of(1).set("e1/place/12", "address").ok());
  world.mark_dead(2, "rank 2 was lost");
  const auto dead = world.of(0).get("e1/place/2", kLong);
  CHECK(dead.status().code() == Code::kUnavailable);
  CHECK(dead.status().message() == "rank 2 was lost");
  CHECK(world.of(0).get("e1/place/12", kLong).value() == "address");
}

}  // namespace rueda::rendezvous::testing

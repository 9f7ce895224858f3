#include "runtime/negotiation/response_cache.h"

#include <catch2/catch.hpp>

#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

using negotiation::ResponseCache;

TEST_CASE("a request keeps its number, another gets its own", "[cache]") {
  ResponseCache cache(8);
  CHECK_FALSE(cache.find(request("a")));
  CHECK(cache.assign(share(request("a"))) == 0u);
  CHECK(cache.assign(share(request("a"))) == 0u);
  CHECK(cache.assign(share(request("b"))) == 1u);
  CHECK(cache.find(request("a")) == 0u);
  CHECK(*cache.get(1) == request("b"));
  CHECK(cache.get(2) == nullptr);
}

TEST_CASE("other properties mean another number; the old one stays readable", "[cache]") {
  ResponseCache cache(8);
  REQUIRE(cache.assign(share(request("a", 4))) == 0u);
  CHECK_FALSE(cache.find(request("a", 5)));
  CHECK(cache.assign(share(request("a", 5))) == 1u);
  CHECK(*cache.get(0) == request("a", 4));
}

TEST_CASE("a tensor that alternates between two shapes does not fill the cache", "[cache]") {
  ResponseCache cache(8);
  for (int round = 0; round < 100; ++round) {
    REQUIRE(cache.assign(share(request("a", 4))) == 0u);
    REQUIRE(cache.assign(share(request("a", 5))) == 1u);
  }
  CHECK(cache.size() == 2);
  CHECK(cache.find(request("a", 4)) == 0u);
}

TEST_CASE("a full cache takes no more and forgets nothing", "[cache]") {
  ResponseCache cache(2);
  REQUIRE(cache.assign(share(request("a"))));
  REQUIRE(cache.assign(share(request("b"))));
  CHECK_FALSE(cache.assign(share(request("c"))));
  CHECK(cache.find(request("a")) == 0u);
  cache.put(7, share(request("d")));
  CHECK(cache.size() == 2);
  CHECK_FALSE(ResponseCache(0).assign(share(request("a"))));
}

TEST_CASE("data-dependent sizes and names of one use are never cached", "[cache]") {
  ResponseCache cache(8);
  CHECK_FALSE(cache.assign(share(request("g", 4, CollectiveKind::kAllgather))));
  CHECK_FALSE(cache.assign(share(request("t", 4, CollectiveKind::kAlltoall))));
  CHECK_FALSE(cache.assign(share(request("b", 4, CollectiveKind::kBarrier))));
  CHECK_FALSE(cache.assign(share(request("noname.grouped.3"))));  // used once
  CHECK(cache.assign(share(request("r", 4, CollectiveKind::kReducescatter))));
  CHECK(cache.assign(share(request("c", 4, CollectiveKind::kBroadcast))));
}

TEST_CASE("unnamed operations leave room in the cache for named ones", "[cache]") {
  ResponseCache cache(8);
  CHECK(cache.assign(share(request("noname.3", 1))));
  CHECK(cache.assign(share(request("noname.3", 2))));
  CHECK_FALSE(cache.assign(share(request("noname.3", 3))));
  CHECK(cache.assign(share(request("a"))));
}

TEST_CASE("ranks that put what the root assigned find the same numbers", "[cache]") {
  ResponseCache root(8);
  ResponseCache other(8);
  for (const char* name : {"a", "b", "c"})
    other.put(*root.assign(share(request(name))), share(request(name)));
  for (const char* name : {"c", "a", "b"})
    CHECK(root.find(request(name)) == other.find(request(name)));
}

}  // namespace
}  // namespace rueda::testing

// What a rank remembers of agreements.
#include "runtime/negotiation/response_cache.h"

#include <catch2/catch.hpp>

#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

using negotiation::ResponseCache;
using negotiation::Sizes;

TEST_CASE("a request keeps its number, another gets its own", "[cache]") {
  ResponseCache cache;
  CHECK_FALSE(cache.find(request("a")));
  cache.put(7, request("a"), nullptr);
  cache.put(9, request("b"), nullptr);
  const auto a = cache.find(request("a"));
  const auto b = cache.find(request("b"));
  REQUIRE((a && b));
  CHECK(*a != *b);
  CHECK(*cache.request(*b) == request("b"));
  CHECK(cache.id_of(*a) == 7);
  CHECK(cache.get(8) == nullptr);
}

TEST_CASE("other properties mean another number; the old one stays readable", "[cache]") {
  ResponseCache cache;
  cache.put(0, request("a", 4), nullptr);
  CHECK_FALSE(cache.find(request("a", 5)));
  cache.put(1, request("a", 5), nullptr);
  CHECK(cache.find(request("a", 4)) != cache.find(request("a", 5)));
  CHECK(*cache.get(0)->request == request("a", 4));
}

TEST_CASE("an id that is taken stays as it is", "[cache]") {
  ResponseCache cache;
  cache.put(0, request("a"), nullptr);
  cache.put(0, request("b"), nullptr);
  CHECK(*cache.get(0)->request == request("a"));
  CHECK(cache.size() == 1);
}

TEST_CASE("one request in several agreements is asked for by the last", "[cache]") {
  const wire::Request mine = request("g", 4, CollectiveKind::kAllgather);
  ResponseCache cache;
  cache.put(3, mine, std::make_shared<const Sizes>(Sizes{4, 1}));
  cache.put(5, mine, std::make_shared<const Sizes>(Sizes{4, 2}));
  const auto number = cache.find(mine);
  REQUIRE(number);
  CHECK(cache.get(3)->request_id == *number);
  CHECK(cache.get(5)->request_id == *number);
  CHECK(cache.id_of(*number) == 5);
  cache.use(3);
  CHECK(cache.id_of(*number) == 3);
  CHECK(*cache.get(3)->sizes == Sizes{4, 1});
  cache.forget(3);
  CHECK(cache.id_of(*number) == 5);
  CHECK(cache.knows(*number));
}

TEST_CASE("a request is forgotten with its last id, and its number is not given again", "[cache]") {
  ResponseCache cache;
  cache.put(0, request("a"), nullptr);
  const auto number = cache.find(request("a"));
  REQUIRE(number);
  cache.forget(0);
  cache.forget(0);  // unknown: nothing
  CHECK_FALSE(cache.knows(*number));
  CHECK_FALSE(cache.knows_name(request("a").name));
  CHECK(cache.request(*number) == nullptr);
  CHECK(cache.size() == 0);
  cache.put(1, request("a"), nullptr);
  CHECK(cache.find(request("a")) != number);
}

}  // namespace
}  // namespace rueda::testing

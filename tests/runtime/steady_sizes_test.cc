// Which sizes come again and again.
#include "runtime/negotiation/steady_sizes.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

using negotiation::RequestPtr;
using negotiation::Requests;
using negotiation::SteadySizes;

std::vector<RequestPtr> rows(int64_t mine, int64_t other, const std::string& name = "g") {
  return {share(request(name, mine, CollectiveKind::kAllgather)),
          share(request(name, other, CollectiveKind::kAllgather))};
}
const std::string kName = request("g", 1, CollectiveKind::kAllgather).name;

TEST_CASE("sizes that came twice are worth an id; a change of any rank's begins again", "[cache]") {
  SteadySizes sizes(8);
  sizes.on_round(rows(4, 5));
  CHECK_FALSE(sizes.is_worth_an_id(kName));
  sizes.on_round(rows(4, 5));
  CHECK(sizes.is_worth_an_id(kName));
  CHECK(sizes.is_steady(kName));
  sizes.on_round(rows(4, 6));
  CHECK_FALSE(sizes.is_worth_an_id(kName));
  CHECK_FALSE(sizes.is_steady(kName));
}

TEST_CASE("sizes that change have to be steady for longer, unless they lasted", "[cache]") {
  SteadySizes sizes(8);
  const auto rounds_until_steady = [&](int64_t other) {
    int rounds = 0;
    do {
      sizes.on_round(rows(4, other));
      ++rounds;
    } while (!sizes.is_steady(kName));
    return rounds;
  };
  CHECK(rounds_until_steady(1) == 2);
  for (int64_t other : {2, 3}) {
    sizes.begin_plan({kName});
    sizes.end_plan(3);
    CHECK(rounds_until_steady(other) == 2 << (other - 1));
  }
  sizes.begin_plan({kName});
  sizes.end_plan(1000);
  CHECK(rounds_until_steady(4) == 2);
}

TEST_CASE("sizes that take turns are not steady for long", "[cache]") {
  SteadySizes sizes(8);
  int steady = 0;
  for (int i = 0; i < 40; ++i) {
    sizes.on_round(rows(4, i / 2 % 2 == 0 ? 5 : 6));
    if (sizes.is_steady(kName)) ++steady;
    CHECK(sizes.is_last(kName, Requests(rows(4, 6))) == (i / 2 % 2 == 1));
  }
  CHECK(steady == 1);
}

TEST_CASE("of more names than it remembers the one unused for longest begins again", "[cache]") {
  SteadySizes sizes(2);
  for (const char* name : {"a", "b", "a", "c", "a", "b"}) sizes.on_round(rows(1, 2, name));
  CHECK(sizes.is_steady(request("a", 1, CollectiveKind::kAllgather).name));
  CHECK_FALSE(sizes.is_steady(request("b", 1, CollectiveKind::kAllgather).name));
  SteadySizes none(0);
  for (int i = 0; i < 4; ++i) none.on_round(rows(1, 2));
  CHECK_FALSE(none.is_steady(kName));
}

}  // namespace
}  // namespace rueda::testing

// The choice of the target.
#include <algorithm>
#include <catch2/catch.hpp>

#include "collectives/kernels/kernels.h"

namespace rueda::kernels {

TEST_CASE("the best target is in use until another is chosen by name", "[kernels]") {
  const auto names = available_targets();
  REQUIRE_FALSE(names.empty());
  CHECK(names.front() == "portable");
  REQUIRE(use_target(names.back()));
  for (const std::string& name : names) {
    CHECK(use_target(name));
    CHECK(active_target() == name);
  }
}

TEST_CASE("an unknown or unsupported target is refused and changes nothing", "[kernels]") {
  const auto names = available_targets();
  REQUIRE(use_target(names.back()));
  for (const std::string name : {"", "avx1024", "AVX2", "sse", "avx2 "}) {
    CHECK_FALSE(use_target(name));
    CHECK(active_target() == names.back());
  }
  for (const std::string name : {"sse4", "avx2", "avx512"}) {
    const bool listed = std::find(names.begin(), names.end(), name) != names.end();
    CHECK(use_target(name) == listed);
  }
  use_target(names.back());
}

}  // namespace rueda::kernels

// Two versions of rueda in one job: refused, with both named.
#include "collectives/base/version.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include <future>

#include "proto/store_codec.h"
#include "runtime/membership/join.h"
#include "runtime/observe/life/life_page.h"
#include "runtime/rendezvous/memory_store.h"

namespace rueda::testing {
namespace {

constexpr std::chrono::seconds kLong{300};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("versions are numbers in the order of releases", "[versions]") {
  CHECK(version_text(version_number()) == version());
  CHECK(version_text(1002003) == "1.2.3");
  CHECK(version_text(9) == "0.0.9");
}

TEST_CASE("a rank of another version is named with its version", "[versions]") {
  rendezvous::MemoryStore store;
  const auto key = rendezvous::JobKey::make_random();
  REQUIRE(key.ok());
  auto stranger = std::async(std::launch::async, [&] {
    wire::PlaceInfo place;
    const auto mine = store.get("e1/place/0", kLong);
    if (!mine.ok() || !wire::decode(mine.value(), &place).ok()) return false;
    place.rank = 1;
    place.version = 9;
    return store.set("e1/place/1", wire::encode(place)).ok();
  });
  membership::JoinOptions options;
  options.place.rank = 0;
  options.place.size = 2;
  options.place.job_id = "job";
  const Status status = membership::join(options, &store, &key.value()).status();
  CHECK(stranger.get());
  CHECK(status.code() == Code::kFailedPrecondition);
  INFO(status.message());
  CHECK(has(status.message(), "rank 1 "));
  CHECK(has(status.message(), "has rueda 0.0.9"));
  CHECK(has(status.message(), "has rueda " + version() + ": install the same one everywhere"));
}

TEST_CASE("a launcher of another version is refused", "[versions]") {
  UniqueFd fd;
  auto page = life::LifeMapping::create(&fd);
  REQUIRE(page.ok());
  CHECK(life::LifeMapping::open(fd.get()).ok());
  page.value()->release = 9;
  const Status status = life::LifeMapping::open(fd.get()).status();
  CHECK(status.code() == Code::kFailedPrecondition);
  INFO(status.message());
  CHECK(has(status.message(), "this librueda is of version " + version()));
  CHECK(has(status.message(), "the launcher of this rank of version 0.0.9"));
}

}  // namespace
}  // namespace rueda::testing

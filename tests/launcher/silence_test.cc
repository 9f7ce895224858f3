#include "launcher/processes/silence.h"

#include <catch2/catch.hpp>

using namespace rueda::launcher;
using Look = Silence::Verdict;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr ProcessState kStopped{'T', false}, kAsleep{'S', false}, kTraced{'t', false};
constexpr ProcessState kDumping{'D', true};

}  // namespace

TEST_CASE("a stopped process is suspect after a second and dead after five", "[silence]") {
  Silence silence(seconds(5));
  std::vector<Look> seen;
  for (int look = 1; look <= 20; ++look)
    seen.push_back(silence.observe(kStopped, false, milliseconds(250)));
  for (int look = 1; look <= 20; ++look) {
    const Look expected = look == 4 ? Look::kSuspect : look == 20 ? Look::kDead : Look::kLive;
    CHECK(seen[static_cast<size_t>(look - 1)] == expected);
  }
}

TEST_CASE("one that goes on begins anew", "[silence]") {
  Silence silence(seconds(2));
  for (int round = 0; round < 10; ++round) {
    for (int look = 0; look < 7; ++look)
      CHECK(silence.observe(kStopped, false, milliseconds(250)) != Look::kDead);
    CHECK(silence.observe(kAsleep, false, milliseconds(250)) == Look::kGoesOn);
    CHECK(silence.observe(kAsleep, false, milliseconds(250)) == Look::kLive);
  }
}

TEST_CASE("a debugger and a core dump are no death", "[silence]") {
  for (const ProcessState& state : {kTraced, kDumping}) {
    Silence silence(seconds(1));
    CHECK(silence.observe(state, false, milliseconds(250)) == Look::kTraced);
    for (int look = 0; look < 1000; ++look)
      CHECK(silence.observe(state, false, milliseconds(250)) == Look::kLive);
  }
}

TEST_CASE("an observer that was paused itself does not count its own absence", "[silence]") {
  Silence silence(seconds(5));
  CHECK(silence.observe(kStopped, false, seconds(3600)) == Look::kLive);
  CHECK(silence.quiet() < seconds(1));
}

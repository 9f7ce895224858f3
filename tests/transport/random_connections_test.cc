// Random traffic (random_traffic.h) over real connections.
#include <catch2/catch.hpp>

#include "tests/transport/random_traffic.h"
#include "tests/transport/ranks_in_turns.h"

namespace rueda::testing {
namespace {

using transport::RandomTraffic;
using transport::Tag;

constexpr Tag kMarkers = Tag{9} << 48;

// What is under way at a marker's sending has arrived with it. A grant, its message and what that
// lets go take a few of them.
bool settle(Ranks& ranks) {
  for (int round = 0; round < 4; ++round) {
    std::byte out[2] = {}, in[2] = {};
    TransferList markers;
    if (!ranks.until([&] { return ranks.at(0).flushed() && ranks.at(1).flushed(); })) return false;
    for (const Rank rank : {0, 1}) {
      const auto at = static_cast<size_t>(rank);
      markers.send(&ranks.at(rank), 1 - rank, kMarkers, ByteView(out).subspan(at, 1));
      markers.recv(&ranks.at(rank), 1 - rank, kMarkers, ByteSpan(in).subspan(at, 1));
    }
    if (!ranks.until_done(markers)) return false;
  }
  return true;
}

TEST_CASE("random traffic keeps its order over every kind of connection", "[transport]") {
  for (const Kind kind : {Kind::kInproc, Kind::kShm, Kind::kTcp, Kind::kStriped}) {
    DYNAMIC_SECTION(name_of(kind)) {
      for (unsigned seed = 0; seed < (is_short() ? 2 : 6); ++seed) {
        INFO("seed " << seed);
        Ranks ranks(kind, 2);
        std::mt19937 random(seed);
        RandomTraffic traffic({&ranks.world(0).transport(), &ranks.world(1).transport()}, seed);
        for (int step = 0; step < (is_short() ? 500 : 2000); ++step) {
          traffic.step();
          if (random() % 4 == 0) ranks.at(static_cast<Rank>(random() % 2)).progress();
          if (random() % 16 == 0) ranks.turn();
        }
        bool settled = true;
        const std::string wrong = traffic.finish([&] { settled &= settle(ranks); });
        CHECK(settled);
        REQUIRE(wrong == "");
        CHECK((ranks.heard(0).ends.empty() && ranks.heard(1).ends.empty()));
        CHECK(traffic.arrived() > (is_short() ? 5 : 20));
      }
    }
  }
}

}  // namespace
}  // namespace rueda::testing

// A recorder's memory that goes from host to host in pieces, and the times at which waits are
// explained.
#include "launcher/observe/flight_pieces.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "launcher/observe/stall_watch.h"
#include "runtime/observe/flight/flight_reader.h"

using namespace rueda;
using launcher::FlightMirror;
using launcher::FlightPiece;

namespace {

// A recorder's memory as a rank would leave it; operation `waits` has not ended.
struct Memory {
  std::vector<uint64_t> words = std::vector<uint64_t>(flight::kTotalBytes / 8);

  explicit Memory(uint64_t operations, uint64_t waits = ~uint64_t{0}) {
    flight::Header header{};
    header.magic = flight::kMagic;
    header.version = flight::kVersion;
    header.header_bytes = sizeof(header);
    header.total_bytes = flight::kTotalBytes;
    header.layout = flight::layout_hash();
    header.rank = 3;
    header.size = 4;
    header.pid = 77;
    header.submitted = operations;
    header.ended = operations;
    header.sites = 2;
    put(0, header);
    flight::Site site{10, "train.py:7"};
    put(flight::kSitesOffset + sizeof(site), site);
    for (uint64_t n = 0; n < operations; ++n) {
      flight::Record record{};
      record.stamp = n + 1;
      record.submitted_ns = static_cast<int64_t>(1000 + n);
      record.site = 2;
      record.state =
          static_cast<uint8_t>(n == waits ? flight::State::kSubmitted : flight::State::kDone);
      std::snprintf(record.name, sizeof(record.name), "allreduce.g%d", static_cast<int>(n));
      put(flight::kRecordsOffset + n % flight::kRecords * sizeof(record), record);
    }
  }
  template <typename T>
  void put(size_t offset, const T& value) {
    std::memcpy(reinterpret_cast<char*>(words.data()) + offset, &value, sizeof(value));
  }
  ByteView view() const { return std::as_bytes(std::span(words)); }
};

size_t size_of(const std::vector<FlightPiece>& pieces) {
  size_t size = 0;
  for (const FlightPiece& piece : pieces) size += piece.bytes.size();
  return size;
}

flight::Snapshot put_together(const std::vector<FlightPiece>& pieces) {
  FlightMirror mirror = FlightMirror::make().value();
  for (const FlightPiece& piece : pieces) REQUIRE(mirror.put(piece).ok());
  return flight::read_flight(mirror.bytes()).value();
}

}  // namespace

TEST_CASE("the whole of a recorder comes out as it was, without the empty parts", "[pieces]") {
  const Memory memory(300);
  const auto pieces = launcher::flight_pieces(memory.view(), launcher::Detail::kWhole);
  CHECK(size_of(pieces) < 300 * sizeof(flight::Record) + 24'000);
  FlightMirror mirror = FlightMirror::make().value();
  for (const FlightPiece& piece : pieces) REQUIRE(mirror.put(piece).ok());
  CHECK(std::memcmp(mirror.bytes().data(), memory.view().data(), flight::kTotalBytes) == 0);
  const Memory full(flight::kRecords + 100);
  CHECK(put_together(launcher::flight_pieces(full.view(), launcher::Detail::kWhole))
            .operations.size() == flight::kRecords);
}

TEST_CASE("of a running job come what was last and what waits", "[pieces]") {
  const Memory memory(4000, 50);
  const auto pieces = launcher::flight_pieces(memory.view(), launcher::Detail::kRecent);
  CHECK(size_of(pieces) < 256 * sizeof(flight::Record) + 16'000);
  const flight::Snapshot back = put_together(pieces);
  CHECK(back.submitted == 4000);
  CHECK(back.pid == 77);
  CHECK(back.operations.size() < 300);
  REQUIRE(back.last() != nullptr);
  CHECK(back.last()->name == "allreduce.g3999");
  CHECK(back.last()->site == "train.py:7");
  const auto waits = std::find_if(back.operations.begin(), back.operations.end(),
                                  [](const flight::Operation& o) { return !o.ended(); });
  REQUIRE(waits != back.operations.end());
  CHECK(waits->name == "allreduce.g50");
}

TEST_CASE("nothing is nothing, and pieces that do not fit are refused", "[pieces]") {
  CHECK(launcher::flight_pieces(ByteView(), launcher::Detail::kWhole).empty());
  const std::vector<uint64_t> zero(flight::kTotalBytes / 8);
  CHECK(launcher::flight_pieces(std::as_bytes(std::span(zero)), launcher::Detail::kWhole).empty());
  FlightMirror mirror = FlightMirror::make().value();
  CHECK(mirror.put({flight::kTotalBytes - 8, std::string(8, 'x')}).ok());
  CHECK(mirror.put({flight::kTotalBytes, std::string(8, 'x')}).code() == Code::kDataLoss);
  CHECK(mirror.put({~uint64_t{7}, std::string(16, 'x')}).code() == Code::kDataLoss);
  CHECK(mirror.put({4, std::string(8, 'x')}).code() == Code::kDataLoss);
  CHECK(mirror.put({0, std::string(flight::kTotalBytes + 8, 'x')}).code() == Code::kDataLoss);
}

TEST_CASE("a wait is explained when it is old, then each time its age has doubled", "[stalls]") {
  constexpr int64_t kSecond = 1'000'000'000;
  auto life = launcher::RankRecord::Life::kRunning;
  const auto look = [&](launcher::StallWatch* watch, int64_t now_s, int64_t since_ns) {
    std::vector<launcher::RankRecord> ranks(2);
    for (int rank = 0; rank < 2; ++rank) {
      ranks[static_cast<size_t>(rank)].rank = rank;
      ranks[static_cast<size_t>(rank)].flight.emplace();
    }
    flight::Operation waits;
    waits.name = "allreduce.x";
    waits.state = flight::State::kSubmitted;
    waits.submitted_ns = since_ns;
    ranks[1].flight->operations.push_back(waits);
    ranks[1].life = life;
    return watch->look(ranks, now_s * kSecond);
  };
  launcher::StallWatch watch(10);
  CHECK_FALSE(look(&watch, 109, 100 * kSecond).any);
  const auto due = look(&watch, 111, 100 * kSecond);
  CHECK(due.any);
  CHECK(due.waiting == std::set<Rank>{1});
  CHECK(due.absent == std::set<Rank>{0});
  CHECK_FALSE(look(&watch, 112, 100 * kSecond + 1'000'000).any);  // another host's clock, a bit off
  CHECK_FALSE(look(&watch, 121, 100 * kSecond).any);
  CHECK(look(&watch, 122, 100 * kSecond).any);
  CHECK(look(&watch, 133, 120 * kSecond).any);  // a later wait of this name
  life = launcher::RankRecord::Life::kDead;
  CHECK_FALSE(look(&watch, 200, 150 * kSecond).any);  // nobody's
  life = launcher::RankRecord::Life::kSilent;
  CHECK(look(&watch, 201, 150 * kSecond).any);
  launcher::StallWatch never(0);
  CHECK_FALSE(look(&never, 1000, 1).any);
}

// Signs of life: the verdicts on a clock of the test's own, and a TagTransport over damaged
// connections.
#include <catch2/catch.hpp>

#include "collectives/transport/peer_watch.h"
#include "tests/transport/two_sides.h"

namespace rueda::transport {
namespace {

using std::chrono::milliseconds;

struct Looks {
  PeerWatch::Time now{};
  PeerWatch watch{{milliseconds(1600)}, {0, 1}, now};  // beats of 100 ms, suspect at 320
  std::vector<bool> watched{false, true};
  PeerWatch::Verdicts after(milliseconds pause = milliseconds(100)) {
    now += pause;
    return watch.look(now, watched, watch.hosts_heard());
  }
};

TEST_CASE("a silent peer is suspect after a fifth of the time and dead after all of it",
          "[watch]") {
  Looks looks;
  std::vector<int> suspects;
  std::vector<int> dead;
  for (int tick = 1; tick <= 16; ++tick) {
    const auto verdicts = looks.after();
    if (!verdicts.suspects.empty()) suspects.push_back(tick);
    if (!verdicts.dead.empty()) dead.push_back(tick);
  }
  CHECK(suspects == std::vector<int>{4});
  CHECK(dead == std::vector<int>{16});
}

TEST_CASE("one byte now and then is life enough", "[watch]") {
  Looks looks;
  for (int tick = 1; tick <= 200; ++tick) {
    if (tick % 15 == 0) looks.watch.heard(1);
    REQUIRE(looks.after().dead.empty());
  }
  looks.watch.heard(1);
  CHECK(looks.after().recovered == std::vector<Rank>{1});
}

TEST_CASE("a pause of this process does not count against its peers", "[watch]") {
  Looks looks;
  for (int pause = 0; pause < 7; ++pause) {
    const auto verdicts = looks.after(milliseconds(60'000));
    REQUIRE(verdicts.dead.empty());
  }
  CHECK_FALSE(looks.after(milliseconds(60'000)).dead.empty());  // eight looks of at most 200 ms
}

// Ranks 1 and 2 are on one other host. The number of looks after which each is dead, 0: is not.
std::vector<int> dead_after_looks(bool second_speaks, bool others_of_our_host_hear) {
  PeerWatch::Time now{};
  PeerWatch watch{{milliseconds(1600)}, {0, 1, 1}, now};
  std::vector<int> dead(3);
  for (int look = 1; look <= 40; ++look) {
    now += milliseconds(100);
    if (second_speaks && look % 3 == 0) watch.heard(2);
    auto heard = watch.hosts_heard();
    heard[1] = heard[1] || (others_of_our_host_hear && look % 3 == 0);
    for (const Rank peer : watch.look(now, {false, true, true}, heard).dead) {
      if (dead[static_cast<size_t>(peer)] == 0) {
        dead[static_cast<size_t>(peer)] = look;
        CHECK(watch.is_alone(peer) == (second_speaks || others_of_our_host_hear));
      }
    }
  }
  return dead;
}

TEST_CASE(
    "a silent host is dead in time, a silent rank of a host that answers after twice the time",
    "[watch]") {
  CHECK(dead_after_looks(false, false) == std::vector<int>{0, 16, 16});
  CHECK(dead_after_looks(true, false) == std::vector<int>{0, 32, 0});
  CHECK(dead_after_looks(false, true) == std::vector<int>{0, 32, 32});
}

TEST_CASE("who says something else needs no beat", "[watch]") {
  Looks looks;
  CHECK(looks.after().beats == std::vector<Rank>{1});
  looks.watch.said(1);
  CHECK(looks.after().beats.empty());
  CHECK(looks.after().beats == std::vector<Rank>{1});
}

std::vector<std::byte> message(size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(i * 7 + i / 256);
  return result;
}

TEST_CASE("what arrives undamaged between hosts is delivered", "[watch]") {
  TwoSides remote(true);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{3'000'000}}) {
    const auto sent = message(bytes);
    std::vector<std::byte> got(bytes);
    Transfer in;
    remote.sides[1]->recv(&in, 0, 5, got, 0);
    Transfer out;
    remote.sides[0]->send(&out, 1, 5, sent, 0);
    remote.run();
    REQUIRE(in.done());
    REQUIRE(in.status().ok());
    REQUIRE(got == sent);
  }
  CHECK(remote.ends.empty());
}

TEST_CASE("any flipped byte of a frame between hosts is an error that names the peer", "[watch]") {
  const auto sent = message(300);
  const size_t frame = sizeof(FrameHeader) + sent.size();
  for (size_t at = 0; at < frame; ++at) {
    TwoSides remote(true);
    std::vector<std::byte> got(sent.size());
    Transfer in;
    remote.sides[1]->recv(&in, 0, 5, got, 0);
    Transfer out;
    remote.sides[0]->send(&out, 1, 5, sent, 0);
    remote.sides[0]->progress();
    REQUIRE(remote.there->bytes.size() == frame);
    remote.there->bytes[at] ^= std::byte{0x10};
    remote.run();
    REQUIRE(in.done());
    REQUIRE(in.status().code() == Code::kDataLoss);
    REQUIRE(in.status().message().find("rank 0 (on another host) was lost: damaged frame") == 0);
  }
}

TEST_CASE("doubled and missing bytes are errors, not numbers", "[watch]") {
  const auto sent = message(300);
  const size_t frame = sizeof(FrameHeader) + sent.size();
  for (size_t at = 0; at < frame; at += 5) {
    for (const bool doubled : {false, true}) {
      TwoSides remote(true);
      std::vector<std::byte> got(sent.size());
      Transfer in;
      remote.sides[1]->recv(&in, 0, 5, got, 0);
      Transfer out;
      remote.sides[0]->send(&out, 1, 5, sent, 0);
      Transfer second;
      remote.sides[0]->send(&second, 1, 6, sent, 0);
      remote.sides[0]->progress();
      auto& bytes = remote.there->bytes;
      const auto place = bytes.begin() + static_cast<ptrdiff_t>(at);
      doubled ? void(bytes.insert(place, *place)) : void(bytes.erase(place));
      remote.run();
      REQUIRE(in.done());
      const bool intact = in.status().ok() && got == sent;
      REQUIRE((intact || in.status().code() == Code::kDataLoss));
      REQUIRE(remote.ends.size() == 1);
    }
  }
}

}  // namespace
}  // namespace rueda::transport

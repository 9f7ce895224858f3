// Transfers: a set that is waited for again and again, in a script too.
#include <catch2/catch.hpp>

#include "collectives/desc/transfers.h"
#include "tests/transport/two_sides.h"

namespace rueda {
namespace {

using transport::Tag;
using transport::Transport;
using transport::TwoSides;
using Bytes = std::vector<std::byte>;

constexpr Tag kTag = 3;

TEST_CASE("a set of transfers is waited for and used again", "[transfers]") {
  for (const size_t capacity : {0, 1, 5, 100}) {
    TwoSides world(false);
    Transfers sends(capacity), recvs(capacity);
    for (int round = 0; round < 4; ++round) {
      const size_t count = 7 * static_cast<size_t>(round);  // none at first
      std::vector<Bytes> sent, got(count, Bytes(100));
      for (size_t i = 0; i < count; ++i) sent.emplace_back(100, static_cast<std::byte>(i + 1));
      for (size_t i = 0; i < count; ++i) {
        recvs.recv(world.sides[1].get(), 0, kTag, got[i]);
        sends.send(world.sides[0].get(), 1, kTag, sent[i]);
      }
      CHECK(recvs.ready() == (count == 0));
      world.run();
      REQUIRE(recvs.ready());
      CHECK(recvs.take().ok());
      REQUIRE(sends.ready());
      CHECK(sends.take().ok());
      CHECK(got == sent);
    }
  }
}

TEST_CASE("the first failure of a set is given, and what is under way is cancelled",
          "[transfers]") {
  TwoSides world(false);
  constexpr Tag kShy = transport::kRendezvousTag | 3;
  Transfers moves(3);
  Bytes a(10), b(20), c(30);
  moves.recv(world.sides[1].get(), 0, kShy, a);
  moves.recv(world.sides[1].get(), 0, kTag, b);
  moves.recv(world.sides[1].get(), 0, kTag, c);
  world.run();
  transport::Transfer wrong;
  world.sides[0]->send(&wrong, 1, kShy, b);
  world.run();
  REQUIRE(moves.ready());
  CHECK(moves.take().code() == Code::kFailedPrecondition);
  // It is empty again; the turns of what was cancelled stay taken.
  CHECK(moves.ready());
  b.assign(20, std::byte{7});
  transport::Transfer first, second, third;
  const Bytes x(20, std::byte{1}), y(30, std::byte{2}), z(40, std::byte{3});
  world.sides[0]->send(&first, 1, kTag, x);
  world.sides[0]->send(&second, 1, kTag, y);
  world.sides[0]->send(&third, 1, kTag, z);
  Bytes got(40);
  moves.recv(world.sides[1].get(), 0, kTag, got);
  world.run();
  REQUIRE(moves.ready());
  CHECK(moves.take().ok());
  CHECK(got == z);
  CHECK(b == Bytes(20, std::byte{7}));
}

Script receive(Transport* transport, Bytes* into) {
  Transfers moves(1);
  for (Status last;;) {
    const Call call = co_await next_call(last);
    moves.recv(transport, 0, call.tag, *into);
    last = co_await moves.finished();
  }
}

TEST_CASE("a script waits for its transfers in each call", "[transfers]") {
  TwoSides world(false);
  Bytes into(100);
  Script script = receive(world.sides[1].get(), &into);
  for (Tag tag = 1; tag < 5; ++tag) {
    script.start({tag, {}});
    CHECK(script.advance());
    CHECK_FALSE(script.advance());
    CHECK_FALSE(script.ended());
    transport::Transfer sent;
    const Bytes bytes(100, static_cast<std::byte>(tag));
    world.sides[0]->send(&sent, 1, tag, bytes);
    world.run();
    CHECK(script.advance());
    REQUIRE(script.ended());
    CHECK(script.status().ok());
    CHECK(into == bytes);
  }
}

TEST_CASE("a script that is ended in a call takes its transfers with it", "[transfers]") {
  TwoSides world(false);
  auto into = std::make_unique<Bytes>(100);
  {
    Script script = receive(world.sides[1].get(), into.get());
    script.start({kTag, {}});
    CHECK(script.advance());
    CHECK_FALSE(script.ended());
  }
  into.reset();
  transport::Transfer sent;
  const Bytes bytes(100, std::byte{1});
  world.sides[0]->send(&sent, 1, kTag, bytes);
  world.run();
  CHECK(sent.done());
  CHECK(world.ends.empty());
  CHECK(world.at(1)->tags_in_use() == 0);
}

}  // namespace
}  // namespace rueda

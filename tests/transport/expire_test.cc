// Tags that expire, at each end when it likes: nothing of them is left, and nothing else is hurt.
#include <catch2/catch.hpp>

#include "tests/transport/transfer_list.h"
#include "tests/transport/two_sides.h"

namespace rueda::transport {
namespace {

using testing::TransferList;

constexpr Tag kSpace = Tag{3} << 48;
constexpr Tag kFirst = kSpace + 0x100, kDead = kSpace + 0x101, kLast = kSpace + 0x1ff;
constexpr Tag kAlive = kSpace + 0x200, kBefore = kSpace + 0xff;
constexpr size_t kExpiredSizes[] = {0, kSmall, kLarge, kHuge};

void expire(TwoSides& world, size_t side) { world.at(side)->expire(kFirst, kLast); }

// The neighbours of the dead tags work as ever, in both directions, and nothing is left.
void check_clean(TwoSides& world, size_t largest) {
  world.open_taps();
  for (const Tag tag : {kBefore, kAlive}) {
    for (const size_t count : {kSmall, largest}) {
      for (const size_t from : {0, 1}) {
        const Bytes content = pattern(count, static_cast<unsigned>(count + from));
        Bytes before(count), after(count);
        TransferList moves;
        const auto to = static_cast<Rank>(1 - from), me = static_cast<Rank>(from);
        moves.recv(world.at(1 - from), me, tag, before);
        moves.send(world.at(from), to, tag, content);
        world.run();
        moves.send(world.at(from), to, tag, content);
        world.run();
        moves.recv(world.at(1 - from), me, tag, after);
        world.run();
        REQUIRE(moves.all_ok());
        REQUIRE((before == content && after == content));
      }
    }
  }
  CHECK(world.ends.empty());
  CHECK(world.ends_at_0.empty());
  for (const size_t side : {0, 1}) {
    CHECK(world.at(side)->tags_in_use() == 0);
    CHECK(world.at(side)->flushed());
  }
}

// test(world, bytes), for the connections and sizes that there are.
template <typename Test>
void in_all_sizes(Test test) {
  for (const bool remote : {false, true}) {
    for (const size_t count : kExpiredSizes) {
      INFO(count << (remote ? " bytes between hosts" : " bytes inside a host"));
      TwoSides world(remote);
      test(world, count);
      check_clean(world, count);
    }
  }
}

TEST_CASE("what has come before its tag expired is freed", "[expire]") {
  in_all_sizes([](TwoSides& world, size_t count) {
    const Bytes content = pattern(count, 1);
    TransferList sends;
    for (int i = 0; i < 3; ++i) sends.send(world.at(0), 1, kDead, content);
    world.run();
    CHECK(world.at(1)->tags_in_use() == (count <= TagTransport::kEagerBytes ? 1 : 0));
    expire(world, 1);
    CHECK(world.at(1)->tags_in_use() == 0);
    expire(world, 0);
    CHECK(sends.all_done());
  });
}

TEST_CASE("what comes after its tag has expired is dropped, however late", "[expire]") {
  in_all_sizes([](TwoSides& world, size_t count) {
    const Bytes content = pattern(count, 1);
    Bytes got(count, std::byte{0xaa});
    TransferList moves;
    const auto& recv = moves.recv(world.at(1), 0, kDead, got);
    world.run();  // a grant may be at the sender
    expire(world, 1);
    REQUIRE(recv.done());
    CHECK(recv.status().code() == Code::kCancelled);
    for (int round = 0; round < 3; ++round) {
      moves.send(world.at(0), 1, kDead, content);
      world.run();
    }
    CHECK(got == Bytes(count, std::byte{0xaa}));
    CHECK(world.at(1)->tags_in_use() == 0);
    expire(world, 0);
    CHECK(moves.all_done());
  });
}

TEST_CASE("a grant for a tag that has expired here is forgotten, early or late", "[expire]") {
  for (const bool grant_is_here : {true, false}) {
    in_all_sizes([&](TwoSides& world, size_t count) {
      Bytes got(count, std::byte{0xaa});
      TransferList moves;
      moves.recv(world.at(1), 0, kDead, got);
      if (grant_is_here) world.run();
      expire(world, 0);
      world.run();
      CHECK(world.at(0)->tags_in_use() == 0);
      const Bytes content = pattern(count, 1);
      const auto& refused = moves.send(world.at(0), 1, kDead, content);
      REQUIRE(refused.done());
      CHECK(refused.status().code() == Code::kCancelled);
      world.run();
      CHECK_FALSE(moves[0].done());  // rank 1 has not expired it yet
      expire(world, 1);
      CHECK(moves.all_done());
      CHECK(got == Bytes(count, std::byte{0xaa}));
    });
  }
}

TEST_CASE("a body that has half arrived is dropped with its tag, at every cut", "[expire]") {
  for (const bool asked_for : {true, false}) {
    for (const size_t cut : {size_t{1}, kHeader, kHeader + 1, kHeader + 200, kHeader + kLarge - 1,
                             kHeader + kPiece, 2 * kHeader + kPiece + 5}) {
      in_all_sizes([&](TwoSides& world, size_t count) {
        const Bytes content = pattern(count, 1);
        Bytes got(count, std::byte{0xaa});
        Transfer recv, sent;
        if (asked_for) world.at(1)->recv(&recv, 0, kDead, got);
        world.run();
        world.at(0)->send(&sent, 1, kDead, content);
        world.there->readable_now = cut;
        world.run();
        const bool arrived = recv.done();
        expire(world, 1);
        CHECK(recv.done());
        got.assign(count, std::byte{0xbb});  // it is the caller's again
        world.open_taps();
        CHECK(got == Bytes(count, std::byte{0xbb}));
        if (asked_for && !arrived) CHECK(recv.status().code() == Code::kCancelled);
        expire(world, 0);
        CHECK(sent.done());
      });
    }
  }
}

TEST_CASE("a send that has half left ends with its tag, and its frame is brought to its end",
          "[expire]") {
  for (const size_t cut :
       {size_t{1}, kHeader + 1, kHeader + 200, kHeader + kPiece, 2 * kHeader + kPiece + 5}) {
    in_all_sizes([&](TwoSides& world, size_t count) {
      Bytes content = pattern(count, 1);
      Bytes got(count);
      Transfer recv, sent, queued;
      world.at(1)->recv(&recv, 0, kDead, got);
      world.run();
      world.there->room = cut;
      world.at(0)->send(&sent, 1, kDead, content);
      world.at(0)->send(&queued, 1, kDead, content);
      world.run();
      const bool began = cut > 0;
      expire(world, 0);
      REQUIRE((sent.done() && queued.done()));
      std::fill(content.begin(), content.end(), std::byte{0xee});
      world.open_taps();
      REQUIRE((began && recv.done()));
      CHECK(recv.status().ok());
      CHECK(got == pattern(count, 1));
      expire(world, 1);
    });
  }
}

TEST_CASE("the two ends expire a tag at different times, with traffic on it both ways",
          "[expire]") {
  for (const size_t first : {0, 1}) {
    in_all_sizes([&](TwoSides& world, size_t count) {
      const Bytes content = pattern(count, 1);
      std::vector<Bytes> got(4, Bytes(count));
      TransferList moves;
      const auto traffic = [&](size_t round) {
        moves.send(world.at(0), 1, kDead, content);
        moves.send(world.at(1), 0, kDead, content);
        moves.recv(world.at(0), 1, kDead, got[2 * round]);
        moves.recv(world.at(1), 0, kDead, got[2 * round + 1]);
      };
      traffic(0);
      world.there->readable_now = kHeader + 10;
      world.back->room = kHeader + 20;
      world.run();
      expire(world, first);
      traffic(1);
      world.open_taps();
      expire(world, 1 - first);
      world.run();
      CHECK(moves.all_done());
    });
  }
}

TEST_CASE("transfers with dead tags end at once, and so do those to oneself", "[expire]") {
  TwoSides world(true);
  expire(world, 0);
  Bytes bytes(kSmall);
  TransferList moves;
  for (const Rank peer : {0, 1}) {
    for (const Tag tag : {kFirst, kDead, kLast}) {
      moves.send(world.at(0), peer, tag, bytes);
      moves.recv(world.at(0), peer, tag, bytes);
    }
  }
  for (const auto& move : moves) {
    REQUIRE(move.done());
    CHECK(move.status().code() == Code::kCancelled);
  }
  Transfer waits;
  world.at(0)->send(&waits, 0, kAlive, bytes);
  world.at(0)->expire(kAlive, kAlive);
  CHECK(waits.status().code() == Code::kCancelled);
}

TEST_CASE("a refusal of a grant whose tag has expired is no error", "[expire]") {
  for (const bool remote : {false, true}) {
    TwoSides world(remote);
    constexpr Tag kShy = kRendezvousTag | 7;
    Bytes bytes(200);
    Transfer recv, sent;
    world.at(1)->recv(&recv, 0, kShy, bytes);
    world.run();
    world.at(0)->send(&sent, 1, kShy, ByteView(bytes).first(100));
    world.there->readable_now = 0;
    world.run();
    CHECK(sent.status().code() == Code::kFailedPrecondition);
    world.at(1)->expire(kShy, kShy);
    CHECK(recv.status().code() == Code::kCancelled);
    check_clean(world, kLarge);
  }
}

TEST_CASE("grants that have not left do not leave when their tag expires", "[expire]") {
  TwoSides world(true);
  Bytes bytes(kLarge);
  TransferList recvs;
  recvs.recv(world.at(1), 0, kDead, bytes);
  recvs.recv(world.at(1), 0, kAlive, bytes);
  expire(world, 1);
  world.run();
  CHECK(world.back->bytes.size() == kHeader);  // kAlive's
  Transfer sent;
  world.at(0)->send(&sent, 1, kAlive, bytes);
  world.run();
  CHECK(sent.status().ok());
}

}  // namespace
}  // namespace rueda::transport

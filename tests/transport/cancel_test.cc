// Receives that are taken back in every state that they can be in; and what holds for any transfer.
#include "tests/transport/taken_back.h"

namespace rueda::transport {
namespace {

using testing::TransferList;

TEST_CASE("a receive that is taken back leaves its message to nobody, and the next one to the next",
          "[cancel]") {
  for (const size_t count : {kSmall, kLarge, kHuge}) {
    for (const bool grant_has_left : {true, false}) {
      in_all_ways([&](WithMoves& world) {
        if (!grant_has_left) world.back->room = 0;
        Move first = world.recv(1, kWithdrawn, count);
        world.run();
        world.take_back(&first);
        world.back->room = Pipe::kUnlimited;
        Move a = world.send(0, kWithdrawn, pattern(count, 1));
        world.run();
        CHECK(a.transfer->done());
        Move second = world.recv(1, kWithdrawn, count);
        Move b = world.send(0, kWithdrawn, pattern(count, 2));
        world.run();
        REQUIRE(second.transfer->done());
        CHECK(*second.bytes == pattern(count, 2));
        CHECK(world.at(1)->tags_in_use() == 0);
      });
    }
  }
}

TEST_CASE("a receive that is being filled is taken back at every point of its message",
          "[cancel]") {
  const std::vector<std::pair<size_t, size_t>> cuts = {
      {kSmall, kHeader},
      {kSmall, kHeader + 10},
      {kSmall, kHeader + kSmall - 1},
      {kLarge, kHeader + 1000},
      {kHuge, kHeader},
      {kHuge, kHeader + 100},
      {kHuge, kHeader + kPiece},  // between two pieces
      {kHuge, kHeader + kPiece + 20},
      {kHuge, kHeader + kPiece + kHeader + 20},
      {kHuge, 2 * (kHeader + kPiece) + kHeader + 3},
  };
  for (const auto& [count, cut] : cuts) {
    INFO(count << " bytes, after " << cut << " of the stream");
    const size_t bytes = count, readable = cut;
    in_all_ways([&](WithMoves& world) {
      Move got = world.recv(1, kWithdrawn, bytes);
      world.run();
      Move sent = world.send(0, kWithdrawn, pattern(bytes, 1));
      Move next = world.send(0, 78, pattern(kSmall, 2));
      world.there->readable_now = readable;
      world.run();
      CHECK(sent.transfer->done());
      world.take_back(&got);
      world.there->readable_now = Pipe::kUnlimited;
      world.run();
      Move got_next = world.recv(1, 78, kSmall);
      REQUIRE(got_next.transfer->done());
      CHECK(*got_next.bytes == pattern(kSmall, 2));
      CHECK(world.at(1)->tags_in_use() == 0);
    });
  }
}

TEST_CASE("a receive that came while its message was half read is taken back with its turn",
          "[cancel]") {
  in_all_ways([](WithMoves& world) {
    Move sent = world.send(0, kWithdrawn, pattern(kSmall, 1));
    world.there->readable_now = kHeader + 10;
    world.run();
    Move got = world.recv(1, kWithdrawn, kSmall);
    world.take_back(&got);
    world.there->readable_now = Pipe::kUnlimited;
    world.run();
    CHECK(world.at(1)->tags_in_use() == 0);
    Move next = world.send(0, kWithdrawn, pattern(kSmall, 2));
    Move got_next = world.recv(1, kWithdrawn, kSmall);
    world.run();
    REQUIRE(got_next.transfer->done());
    CHECK(*got_next.bytes == pattern(kSmall, 2));
  });
}

TEST_CASE("a receive that is taken back in the middle of others keeps their turns", "[cancel]") {
  in_all_ways([](WithMoves& world) {
    Move first = world.recv(1, kWithdrawn, kLarge);
    Move middle = world.recv(1, kWithdrawn, kLarge);
    Move last = world.recv(1, kWithdrawn, kLarge);
    world.run();
    world.take_back(&middle);
    TransferList sends;
    const Bytes contents[3] = {pattern(kLarge, 1), pattern(kLarge, 2), pattern(kLarge, 3)};
    for (const Bytes& content : contents) sends.send(world.at(0), 1, kWithdrawn, content);
    world.run();
    CHECK(sends.all_ok());
    CHECK(*first.bytes == contents[0]);
    CHECK(*last.bytes == contents[2]);
  });
}

TEST_CASE("a refusal takes the turn of a receive that was taken back", "[cancel]") {
  in_all_ways([](WithMoves& world) {
    constexpr Tag kShy = kRendezvousTag | 3;
    Move wrong = world.recv(1, kShy, 100);
    Move right = world.recv(1, kShy, 200);
    world.run();
    world.take_back(&wrong);
    Move refused = world.send(0, kShy, pattern(50, 1));
    Move sent = world.send(0, kShy, pattern(200, 2));
    world.run();
    REQUIRE((refused.transfer->done() && sent.transfer->done() && right.transfer->done()));
    CHECK(refused.transfer->status().code() == Code::kFailedPrecondition);
    CHECK(right.transfer->status().ok());
    CHECK(*right.bytes == pattern(200, 2));
    CHECK(world.at(0)->tags_in_use() == 0);
    CHECK(world.at(1)->tags_in_use() == 0);
  });
}

TEST_CASE("transfers to oneself are taken back too", "[cancel]") {
  for (const How how : {How::kCancel, How::kDestroy}) {
    WithMoves world(false, how);
    const auto to_self = [&](bool sends, Bytes content) {
      Move move(world.at(0), std::move(content));
      sends ? world.at(0)->send(move.transfer.get(), 0, kWithdrawn, *move.bytes)
            : world.at(0)->recv(move.transfer.get(), 0, kWithdrawn, *move.bytes);
      return move;
    };
    Move first = to_self(true, pattern(100, 1));
    Move second = to_self(true, pattern(100, 2));
    world.take_back(&first);
    Move got = to_self(false, Bytes(100));
    REQUIRE(got.transfer->done());
    CHECK(*got.bytes == pattern(100, 2));
    CHECK(second.transfer->done());
    Move taken = to_self(false, Bytes(100));
    Move later = to_self(false, Bytes(100));
    world.take_back(&taken);
    Move third = to_self(true, pattern(100, 3));
    CHECK(third.transfer->done());
    CHECK_FALSE(later.transfer->done());
    Move fourth = to_self(true, pattern(100, 4));
    REQUIRE(later.transfer->done());
    CHECK(*later.bytes == pattern(100, 4));
    CHECK(world.at(0)->tags_in_use() == 0);
  }
}

TEST_CASE("nothing happens to a transfer that is done, and it can be used again", "[cancel]") {
  WithMoves world(false, How::kCancel);
  Transfer transfer;
  CHECK(transfer.done());
  CHECK(transfer.status().ok());
  world.at(0)->cancel(&transfer);
  CHECK(transfer.status().ok());
  for (unsigned round = 0; round < 5; ++round) {
    const Bytes content = pattern(kLarge, round);
    Bytes got(kLarge);
    Transfer recv;
    world.at(0)->send(&transfer, 1, kWithdrawn, content);
    CHECK_FALSE(transfer.done());
    if (round % 2 == 1) {
      world.at(0)->cancel(&transfer);
      CHECK(transfer.status().code() == Code::kCancelled);
      continue;
    }
    world.at(1)->recv(&recv, 0, kWithdrawn, got);
    world.run();
    REQUIRE((transfer.done() && recv.done()));
    world.at(0)->cancel(&transfer);
    CHECK(transfer.status().ok());
    CHECK(got == content);
  }
}

TEST_CASE("what was taken back ends with its transport, half done", "[cancel]") {
  for (const bool remote : {false, true}) {
    WithMoves world(remote, How::kCancel);
    Move got = world.recv(1, kWithdrawn, kHuge);
    Move waiting = world.recv(1, 6, kLarge);
    world.run();
    world.there->room = kHeader + 100;
    Move sent = world.send(0, kWithdrawn, pattern(kHuge, 1));
    world.run();
    world.take_back(&sent);
    world.take_back(&got);
    world.take_back(&waiting);
    world.sides[0]->close(cancelled("over"));
    world.run();
    world.sides[1].reset();
    world.sides[0].reset();
    CHECK(world.ends.size() == 1);
  }
}

}  // namespace
}  // namespace rueda::transport

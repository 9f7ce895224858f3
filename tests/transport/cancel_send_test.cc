// Sends that are taken back in every state that they can be in, and what their peer sees of it.
#include "tests/transport/taken_back.h"

namespace rueda::transport {
namespace {

TEST_CASE("a send that waits for its grant is taken back as if it had never been", "[cancel]") {
  in_all_ways([](WithMoves& world) {
    Move first = world.send(0, kWithdrawn, pattern(kLarge, 1));
    Move second = world.send(0, kWithdrawn, pattern(kLarge, 2));
    world.run();
    world.take_back(&first);
    Move got = world.recv(1, kWithdrawn, kLarge);
    world.run();
    REQUIRE((second.transfer->done() && got.transfer->done()));
    CHECK(*got.bytes == pattern(kLarge, 2));
    CHECK(world.at(0)->tags_in_use() == 0);
    CHECK(world.at(1)->tags_in_use() == 0);
  });
}

TEST_CASE("a small send behind one that waits leaves when that is taken back", "[cancel]") {
  in_all_ways([](WithMoves& world) {
    Move large = world.send(0, kWithdrawn, pattern(kLarge, 1));
    Move small = world.send(0, kWithdrawn, pattern(kSmall, 2));
    world.run();
    REQUIRE_FALSE(small.transfer->done());
    world.take_back(&large);
    Move got = world.recv(1, kWithdrawn, kSmall);
    world.run();
    REQUIRE(got.transfer->done());
    CHECK(*got.bytes == pattern(kSmall, 2));
  });
}

TEST_CASE(
    "a send that is queued behind a full connection is taken back, and its grant is the next "
    "one's",
    "[cancel]") {
  for (const size_t count : {kSmall, kLarge, kHuge}) {
    in_all_ways([&](WithMoves& world) {
      Move got = world.recv(1, kWithdrawn, count);
      world.run();  // the grant is here
      world.there->room = 0;
      Move blocking = world.send(0, 77, pattern(kSmall, 9));
      world.run();  // it is the frame that waits for room
      Move first = world.send(0, kWithdrawn, pattern(count, 1));
      Move second = world.send(0, kWithdrawn, pattern(count, 2));
      world.run();
      world.take_back(&first);
      world.take_back(&blocking);
      world.there->room = Pipe::kUnlimited;
      world.run();
      REQUIRE(got.transfer->done());
      CHECK(*got.bytes == pattern(count, 2));
      CHECK(second.transfer->done());
      CHECK(world.at(1)->tags_in_use() == 0);
    });
  }
}

TEST_CASE("a send whose frame is made and has not begun to leave is taken back", "[cancel]") {
  for (const size_t count : {kSmall, kLarge, kHuge}) {
    in_all_ways([&](WithMoves& world) {
      Move got = world.recv(1, kWithdrawn, count);
      world.run();
      world.there->room = 0;
      Move first = world.send(0, kWithdrawn, pattern(count, 1));
      world.run();
      world.take_back(&first);
      world.there->room = Pipe::kUnlimited;
      world.run();
      CHECK_FALSE(got.transfer->done());
      Move second = world.send(0, kWithdrawn, pattern(count, 2));
      world.run();
      REQUIRE(got.transfer->done());
      CHECK(*got.bytes == pattern(count, 2));
    });
  }
}

TEST_CASE("a message of which a part has left arrives whole, wherever its send is taken back",
          "[cancel]") {
  const std::vector<std::pair<size_t, size_t>> cuts = {
      {kSmall, 1},
      {kSmall, kHeader - 1},
      {kSmall, kHeader},
      {kSmall, kHeader + kSmall - 1},
      {kLarge, 10},
      {kLarge, kHeader + 1000},
      {kHuge, 1},
      {kHuge, kHeader + 5},
      {kHuge, kHeader + kPiece},  // between two pieces
      {kHuge, kHeader + kPiece + 7},
      {kHuge, 2 * (kHeader + kPiece)},
      {kHuge, 2 * (kHeader + kPiece) + kHeader + 3},
  };
  for (const auto& [count, cut] : cuts) {
    INFO(count << " bytes, after " << cut << " of the stream");
    const size_t bytes = count, room = cut;
    in_all_ways([&](WithMoves& world) {
      Move got = world.recv(1, kWithdrawn, bytes);
      world.run();
      world.there->room = room;
      Move sent = world.send(0, kWithdrawn, pattern(bytes, 1));
      Move next = world.send(0, 78, pattern(kSmall, 2));
      world.run();
      world.take_back(&sent);
      world.there->room = Pipe::kUnlimited;
      world.run();
      REQUIRE(got.transfer->done());
      REQUIRE(got.transfer->status().ok());
      CHECK(*got.bytes == pattern(bytes, 1));
      Move got_next = world.recv(1, 78, kSmall);
      CHECK(*got_next.bytes == pattern(kSmall, 2));
      CHECK(world.at(0)->tags_in_use() == 0);
    });
  }
}

TEST_CASE("a refusal follows from what is sent after all, not from what was taken back",
          "[cancel]") {
  in_all_ways([](WithMoves& world) {
    constexpr Tag kShy = kRendezvousTag | 3;
    Move got = world.recv(1, kShy, 200);
    world.run();
    world.there->room = 0;
    Move wrong = world.send(0, kShy, pattern(50, 1));
    Move sent = world.send(0, kShy, pattern(200, 2));
    Move blocking = world.send(0, 77, pattern(kSmall, 9));
    world.take_back(&wrong);
    world.there->room = Pipe::kUnlimited;
    world.run();
    REQUIRE((sent.transfer->done() && got.transfer->done()));
    CHECK(got.transfer->status().ok());
    CHECK(*got.bytes == pattern(200, 2));
    Move drained = world.recv(1, 77, kSmall);
    CHECK(drained.transfer->done());
  });
}

TEST_CASE("a verdict follows the rest of a frame whose send was taken back", "[cancel]") {
  for (const bool remote : {false, true}) {
    WithMoves world(remote, How::kCancel);
    Move got = world.recv(1, kWithdrawn, kHuge);
    world.run();
    world.there->room = kHeader + 100;
    Move sent = world.send(0, kWithdrawn, pattern(kHuge, 1));
    world.run();
    world.take_back(&sent);
    Move late = world.send(0, 9, pattern(kSmall, 2));
    world.there->room = Pipe::kUnlimited;
    world.at(0)->abort(internal_error("rank 0 gave up"));
    CHECK(late.transfer->status().message() == "rank 0 gave up");
    world.run();
    REQUIRE(world.verdicts.size() == 1);
    CHECK(world.verdicts[0].message() == "rank 0 gave up");
  }
}

}  // namespace
}  // namespace rueda::transport

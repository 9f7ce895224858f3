// Transfers that a test takes back, by cancel and by their end: their memory is overwritten and
// gone after it, and everything else must go on.
#pragma once

#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/transport/transfer_list.h"
#include "tests/transport/two_sides.h"

namespace rueda::transport {

inline constexpr Tag kWithdrawn = 5;

// A transfer in memory of its own: a sanitizer sees who touches it after its end.
struct Move {
  TagTransport* transport;
  std::unique_ptr<Bytes> bytes;
  std::unique_ptr<Transfer> transfer = std::make_unique<Transfer>();
  Move(TagTransport* of, Bytes content)
      : transport(of), bytes(std::make_unique<Bytes>(std::move(content))) {}
};

enum class How { kCancel, kDestroy };

struct WithMoves : TwoSides {
  How how;
  WithMoves(bool remote, How taken_back) : TwoSides(remote), how(taken_back) {}
  Move send(size_t from, Tag tag, Bytes content) {
    Move move(at(from), std::move(content));
    move.transport->send(move.transfer.get(), static_cast<Rank>(1 - from), tag, *move.bytes);
    return move;
  }
  Move recv(size_t into, Tag tag, size_t count) {
    Move move(at(into), Bytes(count));
    move.transport->recv(move.transfer.get(), static_cast<Rank>(1 - into), tag, *move.bytes);
    return move;
  }
  // Takes it back; its memory is overwritten and gone after it.
  void take_back(Move* move) {
    REQUIRE_FALSE(move->transfer->done());
    if (how == How::kCancel) {
      move->transport->cancel(move->transfer.get());
      REQUIRE(move->transfer->done());
      CHECK(move->transfer->status().code() == Code::kCancelled);
    } else {
      move->transfer.reset();
    }
    for (std::byte& byte : *move->bytes) byte = std::byte{0xee};
    move->bytes.reset();
  }
};

// Whole exchanges with other tags, both ways, small to huge, asked for before and after.
inline void check_usable(WithMoves& world) {
  world.open_taps();
  Tag tag = 1000;
  for (const size_t count : {size_t{0}, kSmall, kLarge, kHuge}) {
    for (const bool recv_first : {true, false}) {
      if (count == kHuge && !recv_first) continue;
      for (const size_t from : {size_t{0}, size_t{1}}) {
        ++tag;
        const Bytes content = pattern(count, static_cast<unsigned>(tag));
        Bytes got(count);
        testing::TransferList moves;
        if (recv_first) moves.recv(world.at(1 - from), static_cast<Rank>(from), tag, got);
        moves.send(world.at(from), static_cast<Rank>(1 - from), tag, content);
        world.run();
        if (!recv_first) moves.recv(world.at(1 - from), static_cast<Rank>(from), tag, got);
        world.run();
        REQUIRE(moves.all_ok());
        REQUIRE(got == content);
      }
    }
  }
  CHECK(world.ends.empty());
  CHECK(world.ends_at_0.empty());
  CHECK((world.at(0)->flushed() && world.at(1)->flushed()));
}

// What the cancelled ones left ends with their tag.
inline void check_nothing_left(WithMoves& world) {
  check_usable(world);
  for (const size_t side : {0, 1}) world.at(side)->expire(0, 999);
  CHECK(world.at(0)->tags_in_use() == 0);
  CHECK(world.at(1)->tags_in_use() == 0);
}

inline void in_all_ways(const std::function<void(WithMoves&)>& test) {
  for (const bool remote : {false, true}) {
    for (const How how : {How::kCancel, How::kDestroy}) {
      INFO((remote ? "between hosts" : "inside a host")
           << (how == How::kCancel ? ", cancelled" : ", ended"));
      WithMoves world(remote, how);
      test(world);
      check_nothing_left(world);
    }
  }
}

}  // namespace rueda::transport

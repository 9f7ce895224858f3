// Sends and receives that repeat allocate nothing, on every kind of connection: whether messages
// come before they are asked for or after, on the same tags or on new ones each time.
#include <catch2/catch.hpp>

#include <array>

#include "tests/support/allocations.h"
#include "tests/transport/ranks_in_turns.h"

namespace rueda::testing {
namespace {

using transport::kRendezvousTag;
using transport::Tag;
using transport::TagTransport;
using Bytes = std::vector<std::byte>;

constexpr size_t kSizes[] = {0,
                             17,
                             TagTransport::kEagerBytes,
                             TagTransport::kEagerBytes + 1,
                             TagTransport::kFarEagerBytes,
                             TagTransport::kFarEagerBytes + 1,
                             2 * TagTransport::kPieceBytes + 3};
constexpr size_t kMoves = 2 * std::size(kSizes);  // both directions
// Over MPI every chunk of a test's is about 1,000 bytes.
constexpr size_t kMpiSizes = std::size(kSizes) - 1;

enum class Order { kRecvFirst, kSendFirst, kCancelled };

// Two ranks, driven by this thread, and transfers as a persistent operation has them.
class Pair {
 public:
  explicit Pair(Kind kind) : ranks_(kind, 2), moves_(kind == Kind::kMpi ? 2 * kMpiSizes : kMoves) {
    for (size_t move = 0; move < moves_; ++move) {
      sent_.emplace_back(size_of(move), static_cast<std::byte>(1 + move));
      got_.emplace_back(size_of(move));
    }
    const size_t eager = kind == Kind::kInproc || kind == Kind::kShm ? TagTransport::kEagerBytes
                                                                     : TagTransport::kFarEagerBytes;
    eager_ = static_cast<size_t>(
        std::count_if(std::begin(kSizes), std::end(kSizes), [&](size_t s) { return s <= eager; }));
  }
  // One exchange of all sizes, both ways; each on a tag of its own.
  bool exchange(Tag first_tag, Order order) {
    for (Bytes& bytes : got_) std::fill(bytes.begin(), bytes.end(), std::byte{0});
    if (order == Order::kSendFirst) {
      for (size_t move = 0; move < moves_; ++move) send(first_tag, move);
      // Small messages have come unexpected, large ones wait to be sent.
      if (!until_in_use(moves_ / 2)) return false;
    }
    for (size_t move = 0; move < moves_; ++move) recv(first_tag, move);
    if (order != Order::kSendFirst) {
      // All receives are posted, and the grants for the large ones are there.
      const size_t granted = moves_ / 2 - (first_tag & kRendezvousTag ? 0 : eager_);
      if (!until_in_use(moves_ / 2 + granted)) return false;
      for (size_t move = 0; move < moves_; ++move) send(first_tag, move);
    }
    if (order == Order::kCancelled) {
      // Withdrawn by both, half way: each end cancels and lets the tags expire.
      ranks_.turn();
      for (size_t move = 0; move < moves_; ++move) {
        ranks_.at(from(move)).cancel(&sends_[move]);
        ranks_.at(1 - from(move)).cancel(&recvs_[move]);
      }
      for (const Rank rank : {0, 1}) ranks_.at(rank).expire(0, first_tag + kMoves);
    }
    const bool done = ranks_.until([&] {
      return std::all_of(sends_.begin(), sends_.end(), [](const auto& t) { return t.done(); }) &&
             std::all_of(recvs_.begin(), recvs_.end(), [](const auto& t) { return t.done(); }) &&
             ranks_.at(0).flushed() && ranks_.at(1).flushed();
    });
    return done && (order == Order::kCancelled || got_ == sent_);
  }

 private:
  // As many tags have something that waits, at both ends.
  bool until_in_use(size_t tags) {
    return ranks_.until([&] {
      return ranks_.world(0).transport().tags_in_use() == tags &&
             ranks_.world(1).transport().tags_in_use() == tags;
    });
  }
  static size_t size_of(size_t move) { return kSizes[move / 2]; }
  static Rank from(size_t move) { return static_cast<Rank>(move % 2); }
  void send(Tag tag, size_t move) {
    ranks_.at(from(move)).send(&sends_[move], 1 - from(move), tag + move, sent_[move]);
  }
  void recv(Tag tag, size_t move) {
    ranks_.at(1 - from(move)).recv(&recvs_[move], from(move), tag + move, got_[move]);
  }

  Ranks ranks_;
  size_t moves_;
  size_t eager_ = 0;  // sizes that need no grant
  std::vector<Bytes> sent_, got_;
  std::array<transport::Transfer, kMoves> sends_, recvs_;
};

TEST_CASE("exchanges that repeat allocate nothing", "[transport]") {
  const int rounds = is_short() ? 3 : 10;
  for (const Kind kind : {Kind::kInproc, Kind::kShm, Kind::kTcp, Kind::kStriped, Kind::kMpi}) {
    for (const bool same_tags : {true, false}) {
      for (const Order order : {Order::kRecvFirst, Order::kSendFirst}) {
        DYNAMIC_SECTION(name_of(kind)
                        << (same_tags ? ", the same tags" : ", new tags")
                        << (order == Order::kRecvFirst ? ", asked for before" : ", after")) {
          Pair pair(kind);
          Tag tag = Tag{5} << 48;
          const auto round = [&] {
            if (!same_tags) tag += 0x100;
            return pair.exchange(tag, order) && pair.exchange(tag | kRendezvousTag, order);
          };
          for (int warm_up = 0; warm_up < 3; ++warm_up) REQUIRE(round());
          trace_allocations();
          const int64_t before = allocations_of_this_thread();
          bool right = true;
          for (int i = 0; i < rounds; ++i) right &= round();
          const int64_t after = allocations_of_this_thread();
          INFO("allocations:\n" << traced_allocations());
          CHECK(right);
          // MPI's engine is a thread of its own: how many chunks are under way at most is found out
          // by and by. There are 16 of each size and direction.
          CHECK(after - before <= (kind == Kind::kMpi ? 64 : 0));
        }
      }
    }
  }
}

TEST_CASE("after batches that were withdrawn by both ends nothing is allocated either",
          "[transport]") {
  for (const Kind kind : {Kind::kInproc, Kind::kShm, Kind::kTcp, Kind::kStriped, Kind::kMpi}) {
    DYNAMIC_SECTION(name_of(kind)) {
      Pair pair(kind);
      Tag tag = Tag{5} << 48;
      for (int round = 0; round < 10; ++round) {
        REQUIRE(pair.exchange(tag += 0x100, Order::kRecvFirst));
        REQUIRE(pair.exchange(tag += 0x100, Order::kCancelled));
        REQUIRE(pair.exchange(tag += 0x100, Order::kSendFirst));
      }
      const int64_t before = allocations_of_this_thread();
      bool right = true;
      for (int round = 0; round < 5; ++round)
        right &= pair.exchange(tag += 0x100, Order::kRecvFirst);
      CHECK(allocations_of_this_thread() - before <= (kind == Kind::kMpi ? 64 : 0));
      CHECK(right);
    }
  }
}

}  // namespace
}  // namespace rueda::testing

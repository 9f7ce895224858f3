// One suite for every transport: what Transport promises, kept by inproc, shm, tcp, tcp6 and their
// mixture.
//
// All ranks of a world are driven by this thread, in turns, so that every order is the test's
// choice; the last test gives each rank a thread of its own.
#include <catch2/catch.hpp>

#include <cstdlib>

#include "tests/transport/ranks_in_turns.h"

namespace rueda::testing {
namespace {

using transport::kRendezvousTag;
using transport::Tag;
using Bytes = std::vector<std::byte>;

bool is_short() { return std::getenv("RUEDA_TEST_SHORT") != nullptr; }

std::vector<Kind> kinds() {
  std::vector<Kind> result;
  for (const Kind kind : kAllKinds) {
    if (kind != Kind::kTcp6 || has_ipv6()) result.push_back(kind);
  }
  result.push_back(Kind::kStriped);
  return result;
}

Bytes message(Rank from, Rank to, Tag tag, size_t index, size_t bytes) {
  Bytes result(bytes);
  const size_t seed =
      static_cast<size_t>(from) * 3 + static_cast<size_t>(to) * 5 + tag * 7 + index * 11;
  for (size_t i = 0; i < bytes; ++i)
    result[i] = static_cast<std::byte>((seed + i * 13 + i / 256) & 0xff);
  return result;
}

enum class Posted { kBefore, kAfter, kMixed };

struct Exchange {
  Rank from, to;
  Tag tag;
  size_t index;
  Bytes sent, got;
};

// Every rank to every rank (itself too), every tag, every size; the order of posts as asked.
void exchange_all(Ranks& ranks, const std::vector<Tag>& tags, const std::vector<size_t>& sizes,
                  Posted posted) {
  std::vector<Exchange> list;
  for (size_t index = 0; index < sizes.size(); ++index) {
    for (const Tag tag : tags) {
      for (Rank from = 0; from < ranks.size(); ++from) {
        for (Rank to = 0; to < ranks.size(); ++to) {
          list.push_back({from, to, tag, index, message(from, to, tag, index, sizes[index]),
                          Bytes(sizes[index])});
        }
      }
    }
  }
  TransferList transfers;
  const auto post_send = [&](Exchange& e) {
    transfers.send(&ranks.at(e.from), e.to, e.tag, e.sent);
  };
  const auto post_recv = [&](Exchange& e) {
    transfers.recv(&ranks.at(e.to), e.from, e.tag, e.got);
  };
  if (posted == Posted::kMixed) {
    for (Exchange& e : list) {
      const bool send_first = (e.index + e.tag) % 2 == 0;
      if (send_first)
        post_send(e);
      else
        post_recv(e);
      ranks.turn();
      if (send_first)
        post_recv(e);
      else
        post_send(e);
    }
  } else {
    for (Exchange& e : list) posted == Posted::kBefore ? post_recv(e) : post_send(e);
    for (int i = 0; i < 50; ++i) ranks.turn();  // what can arrive, arrives unexpected
    for (Exchange& e : list) posted == Posted::kBefore ? post_send(e) : post_recv(e);
  }
  REQUIRE(ranks.until_done(transfers));
  CHECK(transfers.all_ok());
  bool same = true;
  for (const Exchange& e : list) same &= e.got == e.sent;
  CHECK(same);
}

TEST_CASE(
    "messages of one peer and tag arrive in order, among many tags, whenever they are asked for",
    "[transport]") {
  for (const Kind kind : kinds()) {
    for (const Posted posted : {Posted::kBefore, Posted::kAfter, Posted::kMixed}) {
      DYNAMIC_SECTION(name_of(kind) << " recv "
                                    << (posted == Posted::kBefore  ? "before"
                                        : posted == Posted::kAfter ? "after"
                                                                   : "mixed")) {
        Ranks ranks(kind, 3);
        // Nothing, small, both sides of the eager limit, and small behind large.
        exchange_all(ranks, {1, 2, 900, kRendezvousTag | 3},
                     {0, 1, 8191, 8192, 8193, 100'000, 0, 17}, posted);
      }
    }
  }
}

TEST_CASE("large messages arrive whole around the limit of a piece, both ways at once",
          "[transport]") {
  constexpr size_t kMiB = 1 << 20;
  const std::vector<size_t> sizes = is_short()
                                        ? std::vector<size_t>{kMiB + 1}
                                        : std::vector<size_t>{kMiB - 1, kMiB, kMiB + 1, 5 * kMiB};
  for (const Kind kind : kinds()) {
    DYNAMIC_SECTION(name_of(kind)) {
      Ranks ranks(kind, 2);
      exchange_all(ranks, {4, 5}, sizes, Posted::kBefore);
      exchange_all(ranks, {4, 5}, sizes, Posted::kAfter);
    }
  }
}

TEST_CASE("control messages keep their order and arrive beside large bodies", "[transport]") {
  for (const Kind kind : kinds()) {
    DYNAMIC_SECTION(name_of(kind)) {
      Ranks ranks(kind, 2);
      const Bytes body(3 << 20, std::byte{7});
      Bytes got(body.size());
      TransferList transfers;
      transfers.recv(&ranks.at(1), 0, 1, got);
      transfers.send(&ranks.at(0), 1, 1, body);
      for (int i = 0; i < 500; ++i) {
        ranks.at(0).send_control(1, i % 10 == 0 ? std::string() : std::to_string(i));
        ranks.turn();
      }
      ranks.at(0).send_control(1, std::string(1 << 20, 'x'));
      REQUIRE(ranks.until([&] { return ranks.heard(1).controls.size() == 501; }));
      REQUIRE(ranks.until_done(transfers));
      CHECK(got == body);
      bool in_order = true;
      for (int i = 0; i < 500; ++i) {
        in_order &= ranks.heard(1).controls[static_cast<size_t>(i)].second ==
                    (i % 10 == 0 ? "" : std::to_string(i));
      }
      CHECK(in_order);
      CHECK(ranks.heard(1).controls[500].second.size() == 1 << 20);
    }
  }
}

TEST_CASE("a point-to-point mismatch tells both sides both values and leaves the connection usable",
          "[transport]") {
  for (const Kind kind : kinds()) {
    DYNAMIC_SECTION(name_of(kind)) {
      Ranks ranks(kind, 2);
      const Tag tag = kRendezvousTag | 1;
      const Bytes data(100'000, std::byte{3});
      Bytes got(100'000);
      TransferList wrong_size, wrong_type, right;
      wrong_size.send(&ranks.at(0), 1, tag, ByteView(data).first(100));
      wrong_size.recv(&ranks.at(1), 0, tag, ByteSpan(got).first(200));
      wrong_type.send(&ranks.at(0), 1, tag, data, 6);
      wrong_type.recv(&ranks.at(1), 0, tag, got, 7);
      right.send(&ranks.at(0), 1, tag, data, 6);
      right.recv(&ranks.at(1), 0, tag, got, 6);
      REQUIRE(ranks.until_done(wrong_size));
      REQUIRE(ranks.until_done(wrong_type));
      REQUIRE(ranks.until_done(right));
      for (const auto& transfer : wrong_size) {
        CHECK(transfer.status().code() == Code::kFailedPrecondition);
        CHECK_THAT(transfer.status().message(),
                   Catch::Contains("100 bytes") && Catch::Contains("200 bytes"));
      }
      for (const auto& transfer : wrong_type) {
        CHECK(transfer.status().code() == Code::kFailedPrecondition);
        CHECK_THAT(transfer.status().message(),
                   Catch::Contains("type 6") && Catch::Contains("type 7"));
      }
      CHECK_THAT(wrong_size[0].status().message(),
                 Catch::Contains(ranks.world(0).membership().names[1]));
      CHECK_THAT(wrong_size[1].status().message(),
                 Catch::Contains(ranks.world(1).membership().names[0]));
      for (const size_t side : {0, 1}) {
        const auto of_size = wrong_size[side].status().facts().met;
        const auto of_type = wrong_type[side].status().facts().met;
        REQUIRE(of_size);
        CHECK(of_size->bytes == (side == 0 ? 200 : 100));
        REQUIRE(of_type);
        CHECK(of_type->meta == (side == 0 ? 7 : 6));
      }
      CHECK(right.all_ok());
      CHECK(got == data);
    }
  }
}

TEST_CASE("a peer that says goodbye has its last words heard; then transfers with it are cancelled",
          "[transport]") {
  for (const Kind kind : kinds()) {
    DYNAMIC_SECTION(name_of(kind)) {
      Ranks ranks(kind, 3);
      Bytes last_words = message(1, 0, 1, 0, 5000);
      Bytes into(5000);
      Bytes large(transport::TagTransport::kFarEagerBytes + 1);
      Transfer waiting_recv;
      ranks.at(0).recv(&waiting_recv, 1, 2, into);
      Transfer waiting_send;
      ranks.at(0).send(&waiting_send, 1, 3, large);
      Transfer sent;
      ranks.at(1).send(&sent, 0, 1, last_words);
      ranks.at(1).say_goodbye();
      REQUIRE(ranks.until(
          [&] { return ranks.heard(0).ends.size() == 1 && ranks.heard(2).ends.size() == 1; }));
      REQUIRE(ranks.until([&] { return ranks.at(1).flushed(); }));
      ranks.destroy(1);
      CHECK(ranks.heard(0).ends[0].first == 1);
      CHECK(ranks.heard(0).ends[0].second.ok());
      CHECK(sent.status().ok());
      for (const auto* transfer : {&waiting_recv, &waiting_send}) {
        REQUIRE(transfer->done());
        CHECK(transfer->status().code() == Code::kCancelled);
        CHECK_THAT(
            transfer->status().message(),
            Catch::Contains(ranks.world(0).membership().names[1]) && Catch::Contains("has left"));
      }
      Transfer heard;
      ranks.at(0).recv(&heard, 1, 1, into);
      REQUIRE(heard.done());
      CHECK(heard.status().ok());
      CHECK(into == last_words);
      ranks.at(0).recv(&heard, 1, 1, into);
      CHECK(heard.status().code() == Code::kCancelled);
      // The others go on.
      Bytes a(20'000, std::byte{1});
      Bytes b(20'000);
      TransferList rest;
      rest.send(&ranks.at(2), 0, 9, a);
      rest.recv(&ranks.at(0), 2, 9, b);
      REQUIRE(ranks.until_done(rest));
      CHECK(rest.all_ok());
      CHECK(ranks.heard(0).ends.size() == 1);
    }
  }
}

TEST_CASE("whoever has left does not wake those who stay", "[transport]") {
  for (const Kind kind : kinds()) {
    for (const bool in_order : {true, false}) {
      DYNAMIC_SECTION(name_of(kind) << (in_order ? " after goodbye" : " after a loss")) {
        Ranks ranks(kind, 2);
        if (in_order) {
          ranks.at(1).say_goodbye();
          REQUIRE(ranks.until(
              [&] { return ranks.heard(0).ends.size() == 1 && ranks.at(1).flushed(); }));
        }
        ranks.destroy(1);
        REQUIRE(ranks.until([&] { return ranks.heard(0).ends.size() == 1; }));
        ranks.turn();
        CHECK_FALSE(ranks.world(0).fabric().loop->wait(std::chrono::nanoseconds(0)));
      }
    }
  }
}

TEST_CASE("a lost peer is named by every transfer with it", "[transport]") {
  for (const Kind kind : kinds()) {
    DYNAMIC_SECTION(name_of(kind)) {
      Ranks ranks(kind, 3);
      Bytes into(50'000);
      const Bytes large(3 << 20);
      TransferList waiting;
      waiting.recv(&ranks.at(0), 1, 2, into);
      waiting.send(&ranks.at(0), 1, 3, large);
      waiting.recv(&ranks.at(2), 1, 2, into);
      ranks.turn();
      ranks.destroy(1);
      REQUIRE(ranks.until_done(waiting));
      for (const auto& transfer : waiting) {
        CHECK(transfer.status().code() == Code::kUnavailable);
        CHECK_THAT(transfer.status().message(), Catch::Contains("rank 1 ("));
      }
      for (const Rank rank : {0, 2}) {
        REQUIRE(ranks.heard(rank).ends.size() == 1);
        CHECK(ranks.heard(rank).ends[0].first == 1);
        CHECK(ranks.heard(rank).ends[0].second.code() == Code::kUnavailable);
      }
      CHECK(waiting.send(&ranks.at(0), 1, 1, into).status().code() == Code::kUnavailable);
    }
  }
}

TEST_CASE("an abort carries the verdict to every peer, unchanged", "[transport]") {
  for (const Kind kind : kinds()) {
    DYNAMIC_SECTION(name_of(kind)) {
      Ranks ranks(kind, 3);
      Bytes into(100);
      Transfer waiting;
      ranks.at(0).recv(&waiting, 1, 2, into);
      ranks.at(0).abort(
          Status(Code::kUnavailable, "rank 7 was lost: its disk is on fire").with_rank(2));
      REQUIRE(waiting.done());
      CHECK(waiting.status().facts().rank == 2);
      CHECK(waiting.status().message() == "rank 7 was lost: its disk is on fire");
      REQUIRE(ranks.until(
          [&] { return !ranks.heard(1).verdicts.empty() && !ranks.heard(2).verdicts.empty(); }));
      for (const Rank rank : {1, 2}) {
        CHECK(ranks.heard(rank).verdicts[0].first == 0);
        CHECK(ranks.heard(rank).verdicts[0].second.code() == Code::kUnavailable);
        CHECK(ranks.heard(rank).verdicts[0].second.message() ==
              "rank 7 was lost: its disk is on fire");
        CHECK(ranks.heard(rank).verdicts[0].second.facts().rank == 2);
      }
    }
  }
}

TEST_CASE("bytes are counted by the kind of connection that carried them", "[transport]") {
  for (const Kind kind : kinds()) {
    DYNAMIC_SECTION(name_of(kind)) {
      Ranks ranks(kind, 3);
      exchange_all(ranks, {1}, {10, 20'000}, Posted::kBefore);
      const uint64_t per_peer = 20'010;
      const auto sent = [&](const char* connection) { return ranks.at(0).bytes_sent(connection); };
      CHECK(sent("inproc") == (kind == Kind::kInproc ? 2 * per_peer : 0));
      // Two ranks share the first one's host, or one, or none.
      const bool both = kind == Kind::kShm || kind == Kind::kTriples;
      const bool one = kind == Kind::kHybrid || kind == Kind::kPairs;
      const bool none = kind == Kind::kTcp || kind == Kind::kTcp6 || kind == Kind::kStriped;
      CHECK(sent("shm") == (both ? 2 * per_peer : one ? per_peer : 0));
      CHECK(sent("tcp") == (none ? 2 * per_peer : one ? per_peer : 0));
      CHECK(sent("mpi") == (kind == Kind::kMpi ? 2 * per_peer : 0));
    }
  }
}

TEST_CASE("ranks with threads of their own stream to each other and sleep in between",
          "[transport]") {
  const size_t rounds = is_short() ? 20 : 200;
  for (const Kind kind : kinds()) {
    DYNAMIC_SECTION(name_of(kind)) {
      auto worlds = make_worlds(kind, 3);
      const auto results = on_ranks(3, [&](Rank rank) {
        ThreadRank& world = *worlds[static_cast<size_t>(rank)];
        transport::Transport& mine = world.transport();
        bool same = true;
        for (size_t round = 0; round < rounds; ++round) {
          const size_t bytes = (round * 7919) % 60'000;
          TransferList transfers;
          std::vector<Bytes> sent(3);
          std::vector<Bytes> got(3, Bytes(bytes));
          for (Rank peer = 0; peer < 3; ++peer) {
            const auto p = static_cast<size_t>(peer);
            sent[p] = message(rank, peer, 1, round, bytes);
            transfers.send(&mine, peer, 1, sent[p]);
            transfers.recv(&mine, peer, 1, got[p]);
          }
          const auto done = [&] { return transfers.all_ok() && world.transport().flushed(); };
          const auto deadline = std::chrono::steady_clock::now() + kPatience;
          while (!done()) {
            if (world.transport().progress()) continue;
            if (std::chrono::steady_clock::now() > deadline)
              throw Failure("the round does not end");
            world.fabric().doorbell->arm();
            if (world.transport().progress()) {
              world.fabric().doorbell->disarm();
              continue;
            }
            world.transport().park(kPatience);
          }
          for (Rank peer = 0; peer < 3; ++peer) {
            same &= got[static_cast<size_t>(peer)] == message(peer, rank, 1, round, bytes);
          }
        }
        return same;
      });
      CHECK(results == std::vector<bool>{true, true, true});
    }
  }
}

}  // namespace
}  // namespace rueda::testing

// One TagTransport by hand: what it makes of every byte that a peer may send, cut at every place.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <random>

#include "tests/transport/one_side.h"

namespace rueda::transport {
namespace {

using testing::TransferList;

TEST_CASE("a recv posted while its message is half read gets it, wherever the cut is",
          "[tag_transport]") {
  const auto sent = pattern(60);
  for (size_t cut = 0; cut <= sizeof(FrameHeader) + sent.size(); ++cut) {
    OneSide side;
    side.in->put(header(FrameType::kData, sent.size()), sent);
    side.in->readable_now = cut;
    side.run();
    std::vector<std::byte> got(sent.size());
    Transfer transfer;
    side.tag_transport->recv(&transfer, 1, kTag, got);
    side.in->readable_now = Pipe::kUnlimited;
    side.run();
    INFO("cut after byte " << cut);
    REQUIRE(transfer.done());
    REQUIRE(transfer.status().ok());
    REQUIRE(got == sent);
    REQUIRE(side.ends.empty());
  }
}

TEST_CASE("a message that was half read when its recv came does not take the place of the next",
          "[tag_transport]") {
  OneSide side;
  const auto first = pattern(40, 1);
  const auto second = pattern(40, 2);
  side.in->put(header(FrameType::kData, 40), first);
  side.in->put(header(FrameType::kData, 40), second);
  side.in->readable_now = sizeof(FrameHeader) + 10;
  side.run();
  std::vector<std::byte> a(40);
  std::vector<std::byte> b(40);
  Transfer transfer_a;
  side.tag_transport->recv(&transfer_a, 1, kTag, a);
  Transfer transfer_b;
  side.tag_transport->recv(&transfer_b, 1, kTag, b);
  side.in->readable_now = Pipe::kUnlimited;
  side.run();
  REQUIRE((transfer_a.done() && transfer_b.done()));
  CHECK(a == first);
  CHECK(b == second);
}

TEST_CASE("control messages overtake large bodies, piece by piece", "[tag_transport]") {
  OneSide side;
  const auto body = pattern(3 << 20);
  Transfer sent;
  side.tag_transport->send(&sent, 1, kTag, body);
  side.in->put(header(FrameType::kGrant, body.size()));
  side.out->room = sizeof(FrameHeader) + 100;  // inside the first piece
  side.run();
  side.tag_transport->send_control(1, "urgent");
  side.out->room = Pipe::kUnlimited;
  side.run();
  REQUIRE(sent.done());
  const auto frames = side.frames();
  REQUIRE(frames.size() == 4);
  CHECK(frames[0].type == FrameType::kData);
  CHECK(frames[1].type == FrameType::kControl);
  CHECK(frames[2].type == FrameType::kData);
  CHECK(frames[3].offset + frames[3].bytes == body.size());
}

TEST_CASE("a large message waits for its grant, a small one does not", "[tag_transport]") {
  OneSide side;
  const auto small = pattern(TagTransport::kEagerBytes);
  const auto large = pattern(TagTransport::kEagerBytes + 1);
  Transfer small_sent;
  side.tag_transport->send(&small_sent, 1, 1, small);
  Transfer large_sent;
  side.tag_transport->send(&large_sent, 1, 2, large);
  Transfer shy_sent;
  side.tag_transport->send(&shy_sent, 1, kRendezvousTag | 3, ByteView(small).first(1));
  side.run();
  CHECK(small_sent.done());
  CHECK_FALSE(large_sent.done());
  CHECK_FALSE(shy_sent.done());
  side.in->put(header(FrameType::kGrant, large.size(), 2));
  side.in->put(header(FrameType::kGrant, 1, kRendezvousTag | 3));
  side.run();
  CHECK(large_sent.done());
  CHECK(shy_sent.done());
}

TEST_CASE("sends to self meet receives in order, and both sides hear of a mismatch",
          "[tag_transport]") {
  OneSide side;
  const auto data = pattern(100);
  std::vector<std::byte> got(100);
  Transfer sent;
  side.tag_transport->send(&sent, 0, kTag, data);
  CHECK_FALSE(sent.done());
  Transfer received;
  side.tag_transport->recv(&received, 0, kTag, got);
  REQUIRE((sent.done() && received.done()));
  CHECK(got == data);
  Transfer short_recv;
  side.tag_transport->recv(&short_recv, 0, kTag, ByteSpan(got).first(99), 3);
  Transfer long_send;
  side.tag_transport->send(&long_send, 0, kTag, data, 4);
  for (const auto* transfer : {&short_recv, &long_send}) {
    REQUIRE(transfer->done());
    CHECK(transfer->status().code() == Code::kFailedPrecondition);
    CHECK_THAT(transfer->status().message(),
               Catch::Contains("99 bytes") && Catch::Contains("100 bytes"));
  }
}

TEST_CASE("frames of another epoch are read and dropped", "[tag_transport]") {
  OneSide side;
  const auto stale = pattern(200'000, 9);
  auto old = header(FrameType::kData, stale.size());
  old.epoch = kEpoch - 1;
  side.in->put(old, stale);
  auto old_abort = header(FrameType::kAbort, 10);
  old_abort.epoch = kEpoch - 1;
  side.in->put(old_abort, pattern(10));
  auto old_goodbye = header(FrameType::kGoodbye, 0);
  old_goodbye.epoch = kEpoch - 1;
  side.in->put(old_goodbye);
  const auto fresh = pattern(50);
  side.in->put(header(FrameType::kData, fresh.size()), fresh);
  std::vector<std::byte> got(50);
  Transfer transfer;
  side.tag_transport->recv(&transfer, 1, kTag, got);
  side.run();
  REQUIRE(transfer.done());
  CHECK(got == fresh);
  CHECK(side.ends.empty());
  CHECK(side.verdicts.empty());
}

TEST_CASE("abort ends every transfer with the verdict, those queued behind a full connection too",
          "[tag_transport]") {
  OneSide side;
  side.out->room = 0;
  const auto small = pattern(100);
  const auto large = pattern(2 << 20);
  std::vector<std::byte> into(100);
  TransferList transfers;
  for (int i = 0; i < 3; ++i) transfers.send(side.tag_transport.get(), 1, kTag, small);
  transfers.send(side.tag_transport.get(), 1, 9, large);
  transfers.recv(side.tag_transport.get(), 1, kTag, into);
  side.in->put(header(FrameType::kGrant, large.size(), 9));
  side.run();
  transfers.send(side.tag_transport.get(), 1, 9, large);
  side.tag_transport->abort(internal_error("rank 0 gave up"));
  for (const auto& transfer : transfers) {
    REQUIRE(transfer.done());
    CHECK(transfer.status().message() == "rank 0 gave up");
  }
  CHECK(transfers.recv(side.tag_transport.get(), 1, 1, into).status().message() ==
        "rank 0 gave up");
}

TEST_CASE("close ends every transfer", "[tag_transport]") {
  OneSide side;
  side.out->room = 10;
  const auto small = pattern(100);
  std::vector<std::byte> into(100 << 10);
  TransferList transfers;
  transfers.send(side.tag_transport.get(), 1, kTag, small);
  transfers.send(side.tag_transport.get(), 1, kTag, small);
  transfers.send(side.tag_transport.get(), 0, kTag, small);
  transfers.recv(side.tag_transport.get(), 1, kTag, ByteSpan(into).first(100));
  transfers.recv(side.tag_transport.get(), 1, 8, into);
  auto piece = header(FrameType::kData, into.size(), 8);
  piece.bytes = 1000;
  side.in->put(piece, pattern(1000));
  side.run();
  side.tag_transport->close(cancelled("over"));
  for (const auto& transfer : transfers) {
    REQUIRE(transfer.done());
    CHECK(transfer.status().code() == Code::kCancelled);
  }
  CHECK(side.out->ended);
}

struct Damage {
  const char* name;
  FrameHeader header;
  size_t body;
  const char* text;
};

std::vector<Damage> damages() {
  std::vector<Damage> list;
  const auto add = [&](const char* name, FrameHeader h, size_t body, const char* text) {
    list.push_back({name, h, body, text});
  };
  FrameHeader h = header(FrameType::kData, 10);
  h.magic = 1;
  add("no magic number", h, 10, "magic");
  h = header(FrameType::kData, 10);
  h.type = static_cast<FrameType>(99);
  add("unknown type", h, 10, "unknown type");
  h = header(FrameType::kData, 100);
  h.total = 50;
  add("longer than its message", h, 100, "outside its message");
  h = header(FrameType::kData, 10);
  h.offset = ~uint64_t{0};
  add("offset that wraps around", h, 10, "outside its message");
  h = header(FrameType::kData, ~uint64_t{0});
  h.offset = 1;
  add("length that wraps around", h, 10, "outside its message");
  h = header(FrameType::kData, 10);
  h.total = 20;
  h.offset = 10;
  add("message without its begin", h, 10, "without its begin");
  add("large body without a grant", header(FrameType::kData, TagTransport::kEagerBytes + 1), 10,
      "without a grant");
  add("enormous body", header(FrameType::kData, ~uint64_t{0}), 10, "without a grant");
  add("body of a rendezvous tag without a grant", header(FrameType::kData, 10, kRendezvousTag | 1),
      10, "without a grant");
  add("oversize control", header(FrameType::kControl, kMaxControlBytes + 1), 10, "too large");
  add("empty abort", header(FrameType::kAbort, 0), 0, "abort");
  add("oversize abort", header(FrameType::kAbort, kMaxAbortBytes + 1), 10, "abort");
  add("abort without a reason's code", header(FrameType::kAbort, 8), 8, "abort");  // zeros: code ok
  add("refusal of a grant never given", header(FrameType::kRefuse, 10, 1234), 0, "refusal");
  add("not the size that was asked for", header(FrameType::kData, 10, 77), 10, "expected");
  h = header(FrameType::kData, 32, 77);
  h.meta = 3;
  add("not the type that was asked for", h, 32, "expected");
  return list;
}

TEST_CASE("an abort about a rank that there is not is damaged", "[tag_transport]") {
  for (const uint64_t about : {uint64_t{3}, ~uint64_t{0}}) {
    OneSide side;
    std::vector<std::byte> body(10, std::byte{static_cast<uint8_t>(Code::kInternal)});
    side.in->put(header(FrameType::kAbort, 10, about), body);
    side.run();
    REQUIRE(side.ends.size() == 1);
    CHECK(side.ends[0].code() == Code::kDataLoss);
    CHECK(side.ends[0].facts().rank == 1);
    CHECK(side.verdicts.empty());
  }
}

TEST_CASE("a damaged frame ends its peer with kDataLoss and touches nothing else",
          "[tag_transport]") {
  for (const Damage& damage : damages()) {
    DYNAMIC_SECTION(damage.name) {
      OneSide side;
      std::vector<std::byte> into(32);
      Transfer pending;
      side.tag_transport->recv(&pending, 1, 77, into);
      side.in->put(damage.header, std::vector<std::byte>(damage.body));
      side.run();
      REQUIRE(side.ends.size() == 1);
      CHECK(side.ends[0].code() == Code::kDataLoss);
      CHECK_THAT(side.ends[0].message(),
                 Catch::Contains("rank 1 (the test)") && Catch::Contains(damage.text));
      REQUIRE(pending.done());
      CHECK(pending.status().code() == Code::kDataLoss);
      CHECK(into == std::vector<std::byte>(32));
      CHECK(side.verdicts.empty());
      Transfer late;
      side.tag_transport->send(&late, 1, 1, into);
      CHECK(late.status().code() == Code::kDataLoss);
    }
  }
}

TEST_CASE("pieces must follow each other without a hole and belong to one message",
          "[tag_transport]") {
  struct Next {
    uint64_t offset;
    Tag tag;
    uint64_t total;
  };
  for (const Next next : {Next{2000, kTag, 9000}, Next{0, kTag, 9000}, Next{1000, kTag + 1, 9000},
                          Next{1000, kTag, 9001}}) {
    OneSide side;
    std::vector<std::byte> into(9000);
    Transfer transfer;
    side.tag_transport->recv(&transfer, 1, kTag, into);
    auto piece = header(FrameType::kData, 9000);
    piece.bytes = 1000;
    side.in->put(piece, pattern(1000));
    piece.offset = next.offset;
    piece.tag = next.tag;
    piece.total = next.total;
    side.in->put(piece, pattern(1000));
    side.run();
    REQUIRE(side.ends.size() == 1);
    CHECK(side.ends[0].code() == Code::kDataLoss);
    REQUIRE(transfer.done());
    CHECK(transfer.status().code() == Code::kDataLoss);
  }
}

TEST_CASE("random damage never leads outside a buffer and ends every transfer", "[tag_transport]") {
  const unsigned seeds = std::getenv("RUEDA_TEST_SHORT") != nullptr ? 300 : 3000;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    std::mt19937 random(seed);
    OneSide side;
    Pipe clean;
    for (int i = 0; i < 6; ++i)
      clean.put(header(FrameType::kData, 20 + 5 * i, i % 3), pattern(20 + 5 * i));
    clean.put(header(FrameType::kControl, 30), pattern(30));
    auto piece = header(FrameType::kData, 9000, 8);
    piece.bytes = 4000;
    clean.put(piece, pattern(4000));
    piece.offset = 4000;
    piece.bytes = 5000;
    clean.put(piece, pattern(5000));
    for (unsigned flips = 0; flips <= seed % 4; ++flips) {
      // Mostly the headers at the front.
      const size_t at = random() % (random() % 4 != 0 ? 600 : clean.bytes.size());
      clean.bytes[at] ^= static_cast<std::byte>(1u << (random() % 8));
    }
    side.in->put(clean.bytes);
    side.in->ended = true;
    std::vector<std::vector<std::byte>> buffers;
    TransferList transfers;
    for (int i = 0; i < 3; ++i) buffers.emplace_back(20 + 5 * i);
    buffers.emplace_back(9000);
    for (int i = 0; i < 3; ++i)
      transfers.recv(side.tag_transport.get(), 1, i, buffers[static_cast<size_t>(i)]);
    transfers.recv(side.tag_transport.get(), 1, 8, buffers[3]);
    side.run();
    bool all_done = true;
    for (const auto& transfer : transfers) all_done &= transfer.done();
    INFO("seed " << seed);
    REQUIRE(all_done);
    REQUIRE(side.ends.size() == 1);
  }
}

}  // namespace
}  // namespace rueda::transport

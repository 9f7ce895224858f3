// One TagTransport by hand: what it makes of every byte that a peer may send, cut at every place.
#include "collectives/transport/tag_transport.h"

#include <catch2/catch.hpp>

#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/transport/pipe_connection.h"

namespace rueda::transport {
namespace {

constexpr uint64_t kEpoch = 7;
constexpr Tag kTag = 5;

std::vector<std::byte> pattern(size_t count, unsigned seed = 1) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + i / 256 + seed * 17) & 0xff);
  return bytes;
}

FrameHeader header(FrameType type, uint64_t bytes, Tag tag = kTag) {
  FrameHeader h;
  h.type = type;
  h.epoch = kEpoch;
  h.tag = tag;
  h.bytes = h.total = bytes;
  return h;
}

// Rank 0 of two; the test is rank 1.
struct OneSide {
  std::shared_ptr<Pipe> in = std::make_shared<Pipe>();
  std::shared_ptr<Pipe> out = std::make_shared<Pipe>();
  std::vector<Status> ends;
  std::vector<Status> verdicts;
  std::vector<std::string> controls;
  host::SleepWord word;
  Result<host::Doorbell> bell = host::Doorbell::create(&word);
  Result<host::EventLoop> loop = host::EventLoop::create();
  std::unique_ptr<Transport> tag_transport;  // borrows what is above

  OneSide() {
    if (!bell.ok() || !loop.ok()) FAIL("no doorbell or no event loop");
    std::vector<TagTransport::Peer> peers(2);
    peers[0].name = "rank 0";
    peers[1] = {std::make_unique<PipeConnection>(out, in), "rank 1 (the test)"};
    tag_transport =
        std::make_unique<TagTransport>(0, kEpoch, std::move(peers), &loop.value(), &bell.value());
    TransportEvents events;
    events.on_peer_end = [this](Rank, const Status& status) { ends.push_back(status); };
    events.on_abort = [this](Rank, const Status& verdict) { verdicts.push_back(verdict); };
    events.on_control = [this](Rank, std::string_view text) { controls.emplace_back(text); };
    tag_transport->set_events(events);
  }
  void run() {
    while (tag_transport->progress()) {
    }
  }
  // The frames sent so far.
  std::vector<FrameHeader> frames() const {
    std::vector<FrameHeader> result;
    for (size_t at = 0; at + sizeof(FrameHeader) <= out->bytes.size();) {
      FrameHeader h;
      std::memcpy(&h, out->bytes.data() + at, sizeof(h));
      const bool has_body = h.type == FrameType::kData || h.type == FrameType::kControl ||
                            h.type == FrameType::kAbort;
      at += sizeof(h) + (has_body ? h.bytes : 0);
      result.push_back(h);
    }
    return result;
  }
};

TEST_CASE("a recv posted while its message is half read gets it, wherever the cut is",
          "[tag_transport]") {
  const auto sent = pattern(60);
  for (size_t cut = 0; cut <= sizeof(FrameHeader) + sent.size(); ++cut) {
    OneSide side;
    side.in->put(header(FrameType::kData, sent.size()), sent);
    side.in->readable_now = cut;
    side.run();
    std::vector<std::byte> got(sent.size());
    const auto transfer = side.tag_transport->recv(1, kTag, got);
    side.in->readable_now = Pipe::kUnlimited;
    side.run();
    INFO("cut after byte " << cut);
    REQUIRE(transfer->done);
    REQUIRE(transfer->status.ok());
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
  const auto transfer_a = side.tag_transport->recv(1, kTag, a);
  const auto transfer_b = side.tag_transport->recv(1, kTag, b);
  side.in->readable_now = Pipe::kUnlimited;
  side.run();
  REQUIRE((transfer_a->done && transfer_b->done));
  CHECK(a == first);
  CHECK(b == second);
}

TEST_CASE("control messages overtake large bodies, piece by piece", "[tag_transport]") {
  OneSide side;
  const auto body = pattern(3 << 20);
  const auto sent = side.tag_transport->send(1, kTag, body);
  side.in->put(header(FrameType::kGrant, body.size()));
  side.out->room = sizeof(FrameHeader) + 100;  // inside the first piece
  side.run();
  side.tag_transport->send_control(1, "urgent");
  side.out->room = Pipe::kUnlimited;
  side.run();
  REQUIRE(sent->done);
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
  const auto small_sent = side.tag_transport->send(1, 1, small);
  const auto large_sent = side.tag_transport->send(1, 2, large);
  const auto shy_sent = side.tag_transport->send(1, kRendezvousTag | 3, ByteView(small).first(1));
  side.run();
  CHECK(small_sent->done);
  CHECK_FALSE(large_sent->done);
  CHECK_FALSE(shy_sent->done);
  side.in->put(header(FrameType::kGrant, large.size(), 2));
  side.in->put(header(FrameType::kGrant, 1, kRendezvousTag | 3));
  side.run();
  CHECK(large_sent->done);
  CHECK(shy_sent->done);
}

TEST_CASE("sends to self meet receives in order, and both sides hear of a mismatch",
          "[tag_transport]") {
  OneSide side;
  const auto data = pattern(100);
  std::vector<std::byte> got(100);
  const auto sent = side.tag_transport->send(0, kTag, data);
  CHECK_FALSE(sent->done);
  const auto received = side.tag_transport->recv(0, kTag, got);
  REQUIRE((sent->done && received->done));
  CHECK(got == data);
  const auto short_recv = side.tag_transport->recv(0, kTag, ByteSpan(got).first(99), 3);
  const auto long_send = side.tag_transport->send(0, kTag, data, 4);
  for (const auto& transfer : {short_recv, long_send}) {
    REQUIRE(transfer->done);
    CHECK(transfer->status.code() == Code::kFailedPrecondition);
    CHECK_THAT(transfer->status.message(),
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
  const auto transfer = side.tag_transport->recv(1, kTag, got);
  side.run();
  REQUIRE(transfer->done);
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
  std::vector<TransferPtr> transfers;
  for (int i = 0; i < 3; ++i) transfers.push_back(side.tag_transport->send(1, kTag, small));
  transfers.push_back(side.tag_transport->send(1, 9, large));
  transfers.push_back(side.tag_transport->recv(1, kTag, into));
  side.in->put(header(FrameType::kGrant, large.size(), 9));
  side.run();
  transfers.push_back(side.tag_transport->send(1, 9, large));
  side.tag_transport->abort(internal_error("rank 0 gave up"));
  for (const auto& transfer : transfers) {
    REQUIRE(transfer->done);
    CHECK(transfer->status.message() == "rank 0 gave up");
  }
  CHECK(side.tag_transport->recv(1, 1, into)->status.message() == "rank 0 gave up");
}

TEST_CASE("close ends every transfer", "[tag_transport]") {
  OneSide side;
  side.out->room = 10;
  const auto small = pattern(100);
  std::vector<std::byte> into(100 << 10);
  std::vector<TransferPtr> transfers;
  transfers.push_back(side.tag_transport->send(1, kTag, small));
  transfers.push_back(side.tag_transport->send(1, kTag, small));
  transfers.push_back(side.tag_transport->send(0, kTag, small));
  transfers.push_back(side.tag_transport->recv(1, kTag, ByteSpan(into).first(100)));
  transfers.push_back(side.tag_transport->recv(1, 8, into));
  auto piece = header(FrameType::kData, into.size(), 8);
  piece.bytes = 1000;
  side.in->put(piece, pattern(1000));
  side.run();
  side.tag_transport->close(cancelled("over"));
  for (const auto& transfer : transfers) {
    REQUIRE(transfer->done);
    CHECK(transfer->status.code() == Code::kCancelled);
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

TEST_CASE("a damaged frame ends its peer with kDataLoss and touches nothing else",
          "[tag_transport]") {
  for (const Damage& damage : damages()) {
    DYNAMIC_SECTION(damage.name) {
      OneSide side;
      std::vector<std::byte> into(32);
      const auto pending = side.tag_transport->recv(1, 77, into);
      side.in->put(damage.header, std::vector<std::byte>(damage.body));
      side.run();
      REQUIRE(side.ends.size() == 1);
      CHECK(side.ends[0].code() == Code::kDataLoss);
      CHECK_THAT(side.ends[0].message(),
                 Catch::Contains("rank 1 (the test)") && Catch::Contains(damage.text));
      REQUIRE(pending->done);
      CHECK(pending->status.code() == Code::kDataLoss);
      CHECK(into == std::vector<std::byte>(32));
      CHECK(side.verdicts.empty());
      CHECK(side.tag_transport->send(1, 1, into)->status.code() == Code::kDataLoss);
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
    const auto transfer = side.tag_transport->recv(1, kTag, into);
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
    REQUIRE(transfer->done);
    CHECK(transfer->status.code() == Code::kDataLoss);
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
    std::vector<TransferPtr> transfers;
    for (int i = 0; i < 3; ++i) buffers.emplace_back(20 + 5 * i);
    buffers.emplace_back(9000);
    for (int i = 0; i < 3; ++i)
      transfers.push_back(side.tag_transport->recv(1, i, buffers[static_cast<size_t>(i)]));
    transfers.push_back(side.tag_transport->recv(1, 8, buffers[3]));
    side.run();
    bool all_done = true;
    for (const auto& transfer : transfers) all_done &= transfer->done;
    INFO("seed " << seed);
    REQUIRE(all_done);
    REQUIRE(side.ends.size() == 1);
  }
}

}  // namespace
}  // namespace rueda::transport

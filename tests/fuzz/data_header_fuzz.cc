// Frames on a data connection: whatever a peer writes, in pieces cut anywhere, with receives posted
// and not, cancelled, and with tags that have expired. Every transfer ends once the connection
// does, and nothing is written outside what was asked for, nor into what was taken back.
#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "collectives/transport/checksum.h"
#include "collectives/transport/tag_transport.h"
#include "tests/fuzz/input.h"
#include "tests/transport/pipe_connection.h"

namespace rueda::fuzz {
namespace {

using namespace transport;

constexpr uint64_t kEpoch = 7;

// A frame that a peer could have written: type, tag, sizes and body are the input's.
FrameHeader header(Input* input) {
  FrameHeader frame;
  frame.type = static_cast<FrameType>(input->number<uint8_t>());
  frame.meta = input->number<uint8_t>() % 2;
  frame.epoch = input->number<uint8_t>() < 250 ? kEpoch : kEpoch - 1;
  const auto tag = input->number<uint8_t>();
  frame.tag = tag % 4 + (tag & 128 ? kRendezvousTag : 0);
  frame.bytes = input->number<uint16_t>();
  frame.offset = input->number<uint16_t>();
  frame.total = input->number<uint16_t>();
  const auto odd = input->number<uint8_t>();
  if (odd & 1) frame.bytes |= uint64_t{1} << (odd / 16 * 4);
  if (odd & 2) frame.total = frame.bytes;
  if (odd & 4) frame.bytes = -frame.bytes;
  if (odd & 8) frame.offset = -frame.offset;
  return frame;
}

// What a sender adds on a connection that leaves its host to its frame of this number.
void seal(FrameHeader* frame, uint32_t number, std::string_view body) {
  frame->body_sum = crc32c(std::as_bytes(std::span(body)));
  frame->header_sum =
      crc32c(std::as_bytes(std::span(frame, 1)).first(offsetof(FrameHeader, header_sum)), number);
}

void session(Input input) {
  const bool crosses_hosts = input.number<uint8_t>() % 2 == 1;
  host::SleepWord word;
  Result<host::Doorbell> bell = host::Doorbell::create(&word);
  Result<host::EventLoop> loop = host::EventLoop::create();
  if (!bell.ok() || !loop.ok()) return;
  const auto in = std::make_shared<Pipe>(), out = std::make_shared<Pipe>();
  std::vector<TagTransport::Peer> peers(2);
  peers[0].name = "rank 0";
  peers[1] = {std::make_unique<PipeConnection>(out, in, crosses_hosts), "rank 1"};
  struct Move {
    // Of exactly the size that was asked for: a sanitizer sees a byte beyond it.
    std::unique_ptr<std::byte[]> memory;
    Transfer transfer;
  };
  std::deque<Move> moves;
  TagTransport tag_transport(0, kEpoch, std::move(peers), &loop.value(), &bell.value());
  int ends = 0;
  uint32_t number = 0;
  TransportEvents events;
  events.on_peer_end = [&](Rank, const Status&) { ++ends; };
  events.on_abort = [](Rank, const Status& verdict) { expect(!verdict.ok(), "a verdict is bad"); };
  events.on_control = [](Rank, std::string_view text) {
    expect(text.size() <= kMaxControlBytes, "control messages are bounded");
  };
  tag_transport.set_events(events);
  for (int turn = 0; turn < 256 && !input.empty(); ++turn) {
    const auto what = input.number<uint8_t>();
    const Tag tag = what / 8 % 4 + (what & 128 ? kRendezvousTag : 0);
    switch (what % 8) {
      case 0:
      case 1: {
        const size_t count = input.number<uint16_t>();
        Move& move = moves.emplace_back();
        move.memory = std::make_unique<std::byte[]>(count + 1);
        const ByteSpan span(move.memory.get() + 1, count);
        const uint16_t meta = what & 64 ? 1 : 0;
        what % 8 == 0 ? tag_transport.recv(&move.transfer, 1, tag, span, meta)
                      : tag_transport.send(&move.transfer, 1, tag, span, meta);
        break;
      }
      case 2:
        if (what < 128) {
          in->readable_now = input.number<uint8_t>();
        } else {
          out->room = what < 192 ? input.number<uint8_t>() : Pipe::kUnlimited;
        }
        break;
      case 3:
        if (what < 128) {
          in->readable_now = Pipe::kUnlimited;
        } else if (!moves.empty()) {
          Move& move = moves[input.number<uint8_t>() % moves.size()];
          tag_transport.cancel(&move.transfer);
          expect(move.transfer.done(), "a cancelled transfer has ended");
          move.memory.reset();
        }
        break;
      case 4:
        if (what < 192) {
          in->put(std::as_bytes(std::span(input.bytes())));
        } else {
          tag_transport.expire(tag, tag + input.number<uint8_t>() % 2);
        }
        break;
      default: {
        FrameHeader frame = header(&input);
        const std::string_view body = input.bytes(std::min<uint64_t>(frame.bytes, 64 << 10));
        if (what < 250) seal(&frame, number, body);
        ++number;
        in->put(frame);
        in->put(std::as_bytes(std::span(body)));
      }
    }
    for (int round = 0; round < 64 && tag_transport.progress(); ++round) {
    }
  }
  in->readable_now = Pipe::kUnlimited;
  in->ended = true;
  while (tag_transport.progress()) {
  }
  expect(ends == 1, "the peer's end is told once");
  for (const Move& move : moves) expect(move.transfer.done(), "every transfer ends");
}

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rueda::fuzz::session(rueda::fuzz::Input(data, size));
  return 0;
}

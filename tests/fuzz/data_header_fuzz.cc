// Frames on a data link: whatever a peer writes, in pieces cut anywhere, with receives posted and
// not. Every transfer ends once the link does, and nothing is written outside what was asked for.
#include <array>
#include <cstddef>
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

// What a sender adds on a link that leaves its host to its frame of this number.
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
  // Memory of exactly the size that was asked for: a sanitizer sees a byte beyond it.
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<TransferPtr> transfers;
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
        auto& bytes = memory.emplace_back(new std::byte[count + 1]());
        const ByteSpan span(bytes.get() + 1, count);
        transfers.push_back(what % 8 == 0 ? tag_transport.recv(1, tag, span, what & 64 ? 1 : 0)
                                          : tag_transport.send(1, tag, span, what & 64 ? 1 : 0));
        break;
      }
      case 2: in->readable_now = input.number<uint8_t>(); break;
      case 3: in->readable_now = Pipe::kUnlimited; break;
      case 4: in->put(std::as_bytes(std::span(input.bytes()))); break;
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
  for (const TransferPtr& transfer : transfers) expect(transfer->done, "every transfer ends");
}

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rueda::fuzz::session(rueda::fuzz::Input(data, size));
  return 0;
}

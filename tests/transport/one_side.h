// OneSide: one TagTransport whose peer is the test, byte by byte.
#pragma once

#include <catch2/catch.hpp>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/transport/tag_transport.h"
#include "tests/transport/messages.h"
#include "tests/transport/pipe_connection.h"
#include "tests/transport/transfer_list.h"

namespace rueda::transport {

inline constexpr uint64_t kEpoch = 7;
inline constexpr Tag kTag = 5;

inline FrameHeader header(FrameType type, uint64_t bytes, Tag tag = kTag) {
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
  std::unique_ptr<TagTransport> tag_transport;  // borrows what is above

  explicit OneSide(bool remote = false) {
    if (!bell.ok() || !loop.ok()) FAIL("no doorbell or no event loop");
    std::vector<TagTransport::Peer> peers(2);
    peers[0].name = "rank 0";
    peers[1] = {std::make_unique<PipeConnection>(out, in, remote), "rank 1 (the test)"};
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
      at += sizeof(h) + (has_body(h.type) ? h.bytes : 0);
      result.push_back(h);
    }
    return result;
  }
};

}  // namespace rueda::transport

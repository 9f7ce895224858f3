// PeerState: everything that a TagTransport has about one peer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/transport/connection.h"
#include "collectives/transport/frame.h"
#include "collectives/transport/intrusive_list.h"
#include "collectives/transport/tag_table.h"
#include "collectives/transport/transport.h"

namespace rueda::transport {

// A frame that is the transport's own: a grant, a beat, a control message, a verdict.
struct ControlFrame : Link {
  FrameHeader header;
  std::string body;
};

// Stands for a transfer that its caller has taken back and that cannot just go: a recv whose turn
// is taken, or a send of which a part has left, with a copy of what must follow.
struct Orphan : Transfer {
  std::vector<std::byte> copy;
};

// The frame that is leaving, if any.
struct Writing {
  bool active = false;
  FrameHeader header;
  ByteView body;
  size_t sent = 0;                  // of header and body together
  Transfer* transfer = nullptr;     // data: whose body it is
  ControlFrame* control = nullptr;  // else, if it has one: what holds the body
};

// The frame that is coming, and the message of which it is, or was, a piece.
struct Reading {
  FrameHeader header;
  size_t header_read = 0;
  uint64_t body_read = 0;
  uint32_t body_sum = 0;
  bool other_epoch = false;
  std::string control;               // body of a control or abort frame
  Unexpected* unexpected = nullptr;  // data that nobody had asked for when it began to come

  // A message that somebody asked for, or that is dropped: from its first piece to its last.
  bool arriving = false;
  Tag tag = 0;
  uint64_t total = 0;
  uint64_t arrived = 0;          // in pieces that are complete
  Transfer* transfer = nullptr;  // null: dropped
};

struct PeerState {
  std::unique_ptr<Connection> connection;  // null: this rank itself, or closed
  bool crosses_hosts = false;
  std::string name;         // "rank 3 (pid 4711 on node2)"
  std::string_view kind;    // of the connection
  uint64_t bytes_sent = 0;  // of bodies of data

  // Out: control frames go before bodies, a goodbye behind them.
  List<ControlFrame> urgent;
  List<Transfer> bodies;
  bool goodbye_said = false;
  bool goodbye_waits = false;  // for the bodies
  Writing writing;
  bool cut_short = false;  // a frame was left half sent: nothing can follow

  Reading reading;

  TagTable tags;
  size_t unexpected_bytes = 0;
  // Frames between hosts that have begun to leave, and whose header has arrived.
  uint32_t frames_out = 0;
  uint32_t frames_in = 0;

  std::optional<Status> end;  // set once the peer has left or is lost

  // A verdict can be sent: the peer is there, or only what it sends is damaged.
  bool can_be_told() const { return !end || (end->code() == Code::kDataLoss && !cut_short); }
};

}  // namespace rueda::transport

// Frames out.
#include <algorithm>
#include <array>

#include "collectives/transport/checksum.h"
#include "collectives/transport/tag_transport.h"

namespace rueda::transport {

bool TagTransport::write_some(Rank peer) {
  const bool moved = write_round(peer);
  PeerState& state = state_of(peer);
  if (state.connection != nullptr) state.connection->flush();
  return moved;
}

bool TagTransport::write_round(Rank rank) {
  PeerState& peer = state_of(rank);
  Writing& writing = peer.writing;
  bool moved = false;
  size_t budget = kRoundBytes;
  while (budget > 0 && (writing.active || begin_frame(peer))) {
    const ByteView header = std::as_bytes(std::span(&writing.header, 1));
    const size_t header_sent = std::min(writing.sent, sizeof(FrameHeader));
    const std::array<ByteView, 2> pieces = {header.subspan(header_sent),
                                            writing.body.subspan(writing.sent - header_sent)};
    const auto written = peer.connection->write(pieces);
    if (!written.ok()) {
      // The end is announced by the reading side, which first takes what the peer still had to say.
      peer.connection->set_blocked(false);
      return moved;
    }
    if (written.value() == 0) {
      peer.connection->set_blocked(true);
      return moved;
    }
    moved = true;
    if (watch_) watch_->said(rank);
    writing.sent += written.value();
    budget -= std::min(budget, written.value());
    if (writing.sent == sizeof(FrameHeader) + writing.body.size()) end_frame(peer);
  }
  peer.connection->set_blocked(writing.active || !peer.urgent.empty() || !peer.bodies.empty() ||
                               peer.goodbye_waits);
  return moved;
}

// The next one, if there is any: control frames, then the first body or its next piece, then the
// goodbye.
bool TagTransport::begin_frame(PeerState& peer) {
  Writing& writing = peer.writing;
  if (!peer.urgent.empty()) {
    writing.control = peer.urgent.pop_front();
    writing.header = writing.control->header;
    writing.body = std::as_bytes(std::span(writing.control->body));
  } else if (!peer.bodies.empty()) {
    begin_piece(peer, peer.bodies.front());
  } else if (peer.goodbye_waits) {
    peer.goodbye_waits = false;
    writing.header = header_of(FrameType::kGoodbye, 0, 0, 0);
  } else {
    return false;
  }
  writing.active = true;
  if (peer.crosses_hosts) {
    writing.header.body_sum = crc32c(writing.body);
    writing.header.header_sum = header_sum_of(writing.header, peer.frames_out++);
  }
  return true;
}

void TagTransport::begin_piece(PeerState& peer, Transfer* send) {
  Writing& writing = peer.writing;
  if (send->stage_ == Transfer::Stage::kQueued) {
    const Status granted = send->eager_ ? Status() : take_grant(peer, *send);
    if (!granted.ok()) {
      writing.header = header_of(FrameType::kRefuse, send->tag_, send->bytes_, send->meta_);
      return finish(send, granted);
    }
    send->stage_ = Transfer::Stage::kLeaving;
  }
  const size_t count = std::min<uint64_t>(send->left_, kPieceBytes);
  writing.header = header_of(FrameType::kData, send->tag_, send->bytes_, send->meta_);
  writing.header.bytes = count;
  writing.header.offset = send->bytes_ - send->left_;
  writing.body = {send->data_, count};
  writing.transfer = send;
  send->data_ += count;
  send->left_ -= count;
}

void TagTransport::end_frame(PeerState& peer) {
  Writing& writing = peer.writing;
  if (writing.header.type == FrameType::kData) peer.bytes_sent += writing.body.size();
  if (writing.control != nullptr) give_back(writing.control);
  if (writing.transfer != nullptr && writing.transfer->left_ == 0) finish(writing.transfer, {});
  writing = {};
}

}  // namespace rueda::transport

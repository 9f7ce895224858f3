// The two directions of a peer_state: frames out, frames in.
#include <algorithm>
#include <array>

#include "collectives/transport/checksum.h"
#include "collectives/transport/tag_transport.h"

namespace rueda::transport {
namespace {

// Bytes moved for one peer before the next has its turn.
constexpr size_t kRoundBytes = 4 << 20;

// number: of the frame on its connection. A frame that is missing or comes twice has a wrong sum.
uint32_t sum_of(const FrameHeader& header, uint32_t number) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_sum)),
                number);
}

}  // namespace

// A frame that has not begun to leave gives its number back.
void TagTransport::drop_current(PeerState& peer_state) {
  if (peer_state.current && peer_state.current->sent == 0 && peer_state.connection->crosses_hosts())
    --peer_state.frames_out;
  peer_state.current.reset();
}

void TagTransport::fail_transfers(PeerState& peer_state, const Status& status) {
  for (auto& [tag, sends] : peer_state.waiting_sends) {
    for (auto& send : sends) finish(send.transfer, status);
  }
  for (auto& [tag, recvs] : peer_state.recvs) {
    for (auto& recv : recvs) finish(recv.transfer, status);
  }
  for (auto& out : peer_state.bodies) finish(out.transfer, status);
  if (peer_state.current) finish(peer_state.current->transfer, status);
  if (peer_state.target) finish(peer_state.target->transfer, status);
  if (peer_state.partial) finish(peer_state.partial->transfer, status);
  peer_state.waiting_sends.clear();
  peer_state.recvs.clear();
  peer_state.urgent.clear();
  peer_state.bodies.clear();
  if (peer_state.current && peer_state.current->sent > 0) peer_state.cut_short = true;
  drop_current(peer_state);
  peer_state.target.reset();
  peer_state.partial.reset();
}

// A frame that has begun must be finished before another can follow: from a copy, the caller's
// memory is not ours any more.
void TagTransport::fail_transfers_after_frame(PeerState& peer_state, const Status& status) {
  std::optional<Outgoing> half_sent;
  if (peer_state.current && peer_state.current->sent > 0) {
    half_sent = std::exchange(peer_state.current, std::nullopt);
    finish(std::exchange(half_sent->transfer, nullptr), status);
  }
  fail_transfers(peer_state, status);
  if (!half_sent) return;
  if (half_sent->owned.empty()) {
    half_sent->owned.assign(reinterpret_cast<const char*>(half_sent->body.data()),
                            half_sent->body.size());
  }
  peer_state.current = std::move(half_sent);
  peer_state.current->body = std::as_bytes(std::span(peer_state.current->owned));
}

void TagTransport::end_peer(Rank peer, const Status& status) {
  PeerState& peer_state = peers_[static_cast<size_t>(peer)];
  if (peer_state.end) return;
  peer_state.end = status.ok()
                       ? status
                       : Status(status.code(), peer_state.name + " was lost: " + status.message());
  // Where only what comes in is damaged, the peer can still be told why it is left.
  if (status.code() == Code::kDataLoss)
    fail_transfers_after_frame(peer_state, *refusal(peer));
  else
    fail_transfers(peer_state, *refusal(peer));
  peer_state.connection->unwatch();
  if (events_.on_peer_end) events_.on_peer_end(peer, *peer_state.end);
}

bool TagTransport::write_some(Rank peer) {
  const bool moved = write_round(peer);
  PeerState& peer_state = peers_[static_cast<size_t>(peer)];
  if (peer_state.connection != nullptr) peer_state.connection->flush();
  return moved;
}

// Control frames first; then the first body, or its next piece.
TagTransport::Outgoing TagTransport::next_piece(PeerState& peer_state) {
  auto& queue = peer_state.urgent.empty() ? peer_state.bodies : peer_state.urgent;
  Outgoing& front = queue.front();
  if (front.header.type != FrameType::kData || front.body.size() <= kPieceBytes) {
    Outgoing whole = std::move(front);
    queue.pop_front();
    return whole;
  }
  Outgoing piece{front.header, front.body.first(kPieceBytes), {}, 0, nullptr};
  piece.header.bytes = kPieceBytes;
  front.body = front.body.subspan(kPieceBytes);
  front.header.bytes -= kPieceBytes;
  front.header.offset += kPieceBytes;
  return piece;
}

bool TagTransport::write_round(Rank peer) {
  PeerState& peer_state = peers_[static_cast<size_t>(peer)];
  bool moved = false;
  size_t budget = kRoundBytes;
  while (budget > 0) {
    if (!peer_state.current) {
      if (peer_state.urgent.empty() && peer_state.bodies.empty()) break;
      peer_state.current = next_piece(peer_state);
      if (!peer_state.current->owned.empty()) {
        peer_state.current->body = std::as_bytes(std::span(peer_state.current->owned));
      }
      if (peer_state.connection->crosses_hosts()) {
        FrameHeader& header = peer_state.current->header;
        header.body_sum = crc32c(peer_state.current->body);
        header.header_sum = sum_of(header, peer_state.frames_out++);
      }
    }
    Outgoing& out = *peer_state.current;
    const ByteView header = std::as_bytes(std::span(&out.header, 1));
    const size_t header_left = out.sent < sizeof(FrameHeader) ? sizeof(FrameHeader) - out.sent : 0;
    const size_t body_sent = out.sent - std::min(out.sent, sizeof(FrameHeader));
    const std::array<ByteView, 2> pieces = {header.last(header_left), out.body.subspan(body_sent)};
    const auto written = peer_state.connection->write(pieces);
    if (!written.ok()) {
      // The end is announced by the reading side, which first takes what the peer still had to say.
      peer_state.connection->set_blocked(false);
      return moved;
    }
    if (written.value() == 0) {
      peer_state.connection->set_blocked(true);
      return moved;
    }
    moved = true;
    if (watch_) watch_->said(peer);
    out.sent += written.value();
    budget -= std::min(budget, written.value());
    if (out.sent < sizeof(FrameHeader) + out.body.size()) continue;
    if (out.header.type == FrameType::kData) {
      const auto it = bytes_sent_.find(std::string_view(peer_state.connection->kind()));
      if (it != bytes_sent_.end()) {
        it->second += out.body.size();
      } else {
        bytes_sent_[peer_state.connection->kind()] = out.body.size();
      }
    }
    finish(out.transfer, {});
    peer_state.current.reset();
  }
  peer_state.connection->set_blocked(peer_state.current.has_value() || !peer_state.urgent.empty() ||
                                     !peer_state.bodies.empty());
  return moved;
}

bool TagTransport::read_some(Rank peer) {
  PeerState& peer_state = peers_[static_cast<size_t>(peer)];
  size_t budget = kRoundBytes;
  bool moved = false;
  while (budget > 0 && !peer_state.end && !closed_) {
    if (peer_state.header_read < sizeof(FrameHeader)) {
      const ByteSpan header = std::as_writable_bytes(std::span(&peer_state.header, 1));
      const auto got = peer_state.connection->read(header.subspan(peer_state.header_read));
      if (!got.ok()) {
        end_peer(peer, got.status());
        return true;
      }
      if (got.value() == 0) break;
      moved = true;
      if (watch_) watch_->heard(peer);
      peer_state.header_read += got.value();
      if (peer_state.header_read < sizeof(FrameHeader)) continue;
      peer_state.body_sum = 0;
      const bool damaged =
          peer_state.connection->crosses_hosts() &&
          sum_of(peer_state.header, peer_state.frames_in++) != peer_state.header.header_sum;
      const Status begun =
          damaged ? Status(Code::kDataLoss, "damaged frame (the checksum of its header is wrong)")
                  : begin_body(peer_state);
      if (!begun.ok()) {
        end_peer(peer, begun);
        return true;
      }
    }
    const bool has_body = peer_state.header.type == FrameType::kData ||
                          peer_state.header.type == FrameType::kControl ||
                          peer_state.header.type == FrameType::kAbort;
    const uint64_t length = has_body ? peer_state.header.bytes : 0;
    if (peer_state.body_read < length) {
      ByteSpan into = peer_state.target
                          ? peer_state.target->into.subspan(peer_state.header.offset, length)
                          : ByteSpan(peer_state.body);
      // A dropped body is read through a small buffer again and again.
      if (peer_state.drop)
        into = into.first(std::min<uint64_t>(into.size(), length - peer_state.body_read));
      else
        into = into.subspan(peer_state.body_read);
      const auto got = peer_state.connection->read(into);
      if (!got.ok()) {
        end_peer(peer, got.status());
        return true;
      }
      if (got.value() == 0) break;
      moved = true;
      if (peer_state.connection->crosses_hosts())
        peer_state.body_sum = crc32c(into.first(got.value()), peer_state.body_sum);
      if (watch_) watch_->heard(peer);
      peer_state.body_read += got.value();
      budget -= std::min(budget, got.value());
      if (peer_state.body_read < length) continue;
    }
    peer_state.header_read = 0;
    peer_state.body_read = 0;
    const bool damaged =
        peer_state.connection->crosses_hosts() && peer_state.body_sum != peer_state.header.body_sum;
    const Status ended =
        damaged ? Status(Code::kDataLoss, "damaged frame (the checksum of " +
                                              std::to_string(length) + " bytes is wrong)")
                : finish_body(peer);
    if (!ended.ok()) {
      end_peer(peer, ended);
      return true;
    }
  }
  if (moved && peer_state.connection != nullptr) peer_state.connection->flush();
  return moved;
}

Status TagTransport::begin_data(PeerState& peer_state) {
  const FrameHeader& header = peer_state.header;
  if (header.bytes > header.total || header.offset > header.total - header.bytes) {
    return {Code::kDataLoss, "damaged frame (piece outside its message)"};
  }
  if (peer_state.partial) {
    if (header.tag != peer_state.partial_tag || header.total != peer_state.partial->into.size() ||
        header.offset != peer_state.partial_bytes) {
      return {Code::kDataLoss, "damaged frame (piece of another message)"};
    }
    peer_state.target = peer_state.partial;
    return {};
  }
  if (header.offset != 0) return {Code::kDataLoss, "damaged frame (a message without its begin)"};
  const auto recvs = peer_state.recvs.find(header.tag);
  if (recvs != peer_state.recvs.end()) {
    const PendingRecv recv = recvs->second.front();
    if (recv.meta != header.meta) {
      return {Code::kDataLoss, "message of type " + std::to_string(header.meta) + " where type " +
                                   std::to_string(recv.meta) + " was expected"};
    }
    if (recv.into.size() != header.total) {
      return {Code::kDataLoss, "message of " + std::to_string(header.total) + " bytes where " +
                                   std::to_string(recv.into.size()) + " were expected"};
    }
    peer_state.target = recv;
    recvs->second.pop_front();
    if (recvs->second.empty()) peer_state.recvs.erase(recvs);
    return {};
  }
  if (!is_eager(peer_state, header.tag, header.total) || header.bytes != header.total) {
    return {Code::kDataLoss, "a body came without a grant"};
  }
  if (peer_state.unexpected_bytes + header.bytes > kMaxUnexpectedBytes) {
    return {Code::kDataLoss, "too many messages that nobody asked for"};
  }
  peer_state.body.resize(header.bytes);
  return {};
}

// Decides where the body goes.
Status TagTransport::begin_body(PeerState& peer_state) {
  const FrameHeader& header = peer_state.header;
  peer_state.target.reset();
  peer_state.drop = false;
  peer_state.body.clear();
  if (header.magic != FrameHeader::kMagic)
    return {Code::kDataLoss, "damaged frame (no magic number)"};
  if (header.epoch != epoch_) {
    peer_state.drop = true;
    peer_state.body.resize(std::min<uint64_t>(header.bytes, 64 << 10));
    return {};
  }
  switch (header.type) {
    case FrameType::kData: return begin_data(peer_state);
    case FrameType::kControl:
      if (header.bytes > kMaxControlBytes) return {Code::kDataLoss, "control message too large"};
      peer_state.body.resize(header.bytes);
      return {};
    case FrameType::kAbort:
      if (header.bytes == 0 || header.bytes > kMaxAbortBytes)
        return {Code::kDataLoss, "damaged abort message"};
      peer_state.body.resize(header.bytes);
      return {};
    case FrameType::kGrant:
    case FrameType::kRefuse:
    case FrameType::kBeat:
    case FrameType::kGoodbye: return {};
  }
  return {Code::kDataLoss, "damaged frame (unknown type)"};
}

Status TagTransport::finish_data(PeerState& peer_state) {
  const FrameHeader& header = peer_state.header;
  if (peer_state.target) {
    const bool last = header.offset + header.bytes == header.total;
    if (last) finish(peer_state.target->transfer, {});
    peer_state.partial = last ? std::nullopt : peer_state.target;
    peer_state.partial_tag = header.tag;
    peer_state.partial_bytes = header.offset + header.bytes;
    peer_state.target.reset();
    return {};
  }
  // Nobody had asked for it when it began to arrive; somebody may have by now.
  const auto recvs = peer_state.recvs.find(header.tag);
  if (recvs != peer_state.recvs.end()) {
    const PendingRecv recv = recvs->second.front();
    if (recv.into.size() != peer_state.body.size() || recv.meta != header.meta) {
      return {Code::kDataLoss, "message of the wrong size or type"};
    }
    std::copy(peer_state.body.begin(), peer_state.body.end(), recv.into.begin());
    recvs->second.pop_front();
    if (recvs->second.empty()) peer_state.recvs.erase(recvs);
    finish(recv.transfer, {});
    return {};
  }
  peer_state.unexpected_bytes += peer_state.body.size();
  peer_state.unexpected[header.tag].push_back({std::move(peer_state.body), header.meta});
  peer_state.body = {};
  return {};
}

Status TagTransport::finish_body(Rank peer) {
  PeerState& peer_state = peers_[static_cast<size_t>(peer)];
  const FrameHeader header = peer_state.header;
  if (peer_state.drop) return {};
  const std::string_view text(reinterpret_cast<const char*>(peer_state.body.data()),
                              peer_state.body.size());
  switch (header.type) {
    case FrameType::kData: return finish_data(peer_state);
    case FrameType::kGrant:
      peer_state.grants[header.tag].push_back({header.bytes, header.meta});
      release_sends(peer_state, header.tag);
      return {};
    case FrameType::kRefuse: {
      const auto recvs = peer_state.recvs.find(header.tag);
      if (recvs == peer_state.recvs.end())
        return {Code::kDataLoss, "refusal of a grant that was not given"};
      const PendingRecv recv = recvs->second.front();
      recvs->second.pop_front();
      if (recvs->second.empty()) peer_state.recvs.erase(recvs);
      finish(recv.transfer,
             failed_precondition("sizes or types differ: this rank expected " +
                                 std::to_string(recv.into.size()) + " bytes (type " +
                                 std::to_string(recv.meta) + "), " + peer_state.name + " sent " +
                                 std::to_string(header.bytes) + " bytes (type " +
                                 std::to_string(header.meta) + ")"));
      return {};
    }
    case FrameType::kControl: {
      // The handler may call back into the transport: it gets a copy of its own.
      const std::string message(text);
      if (events_.on_control) events_.on_control(peer, message);
      return {};
    }
    case FrameType::kAbort: {
      const auto code = static_cast<uint8_t>(text[0]);
      if (code == static_cast<uint8_t>(Code::kOk) ||
          code > static_cast<uint8_t>(Code::kUnauthenticated)) {
        return {Code::kDataLoss, "damaged abort message"};
      }
      const Status verdict(static_cast<Code>(code), std::string(text.substr(1)));
      if (events_.on_abort) events_.on_abort(peer, verdict);
      return {};
    }
    case FrameType::kBeat: return {};
    case FrameType::kGoodbye: end_peer(peer, {}); return {};
  }
  return {};
}

}  // namespace rueda::transport

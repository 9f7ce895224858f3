// The two directions of a channel: frames out, frames in.
#include <algorithm>
#include <array>

#include "collectives/transport/checksum.h"
#include "collectives/transport/messenger.h"

namespace rueda::transport {
namespace {

// Bytes moved for one peer before the next has its turn.
constexpr size_t kRoundBytes = 4 << 20;

// number: of the frame on its link. A frame that is missing or comes twice has a wrong sum.
uint32_t sum_of(const FrameHeader& header, uint32_t number) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_sum)),
                number);
}

}  // namespace

// A frame that has not begun to leave gives its number back.
void Messenger::drop_current(Channel& channel) {
  if (channel.current && channel.current->sent == 0 && channel.link->crosses_hosts())
    --channel.frames_out;
  channel.current.reset();
}

void Messenger::fail_transfers(Channel& channel, const Status& status) {
  for (auto& [tag, sends] : channel.waiting_sends) {
    for (auto& send : sends) finish(send.transfer, status);
  }
  for (auto& [tag, recvs] : channel.recvs) {
    for (auto& recv : recvs) finish(recv.transfer, status);
  }
  for (auto& out : channel.bodies) finish(out.transfer, status);
  if (channel.current) finish(channel.current->transfer, status);
  if (channel.target) finish(channel.target->transfer, status);
  if (channel.partial) finish(channel.partial->transfer, status);
  channel.waiting_sends.clear();
  channel.recvs.clear();
  channel.urgent.clear();
  channel.bodies.clear();
  if (channel.current && channel.current->sent > 0) channel.cut_short = true;
  drop_current(channel);
  channel.target.reset();
  channel.partial.reset();
}

// A frame that has begun must be finished before another can follow: from a copy, the caller's
// memory is not ours any more.
void Messenger::fail_transfers_after_frame(Channel& channel, const Status& status) {
  std::optional<Outgoing> half_sent;
  if (channel.current && channel.current->sent > 0) {
    half_sent = std::exchange(channel.current, std::nullopt);
    finish(std::exchange(half_sent->transfer, nullptr), status);
  }
  fail_transfers(channel, status);
  if (!half_sent) return;
  if (half_sent->owned.empty()) {
    half_sent->owned.assign(reinterpret_cast<const char*>(half_sent->body.data()),
                            half_sent->body.size());
  }
  channel.current = std::move(half_sent);
  channel.current->body = std::as_bytes(std::span(channel.current->owned));
}

void Messenger::end_peer(Rank peer, const Status& status) {
  Channel& channel = channels_[static_cast<size_t>(peer)];
  if (channel.end) return;
  channel.end =
      status.ok() ? status : Status(status.code(), channel.name + " was lost: " + status.message());
  // Where only what comes in is damaged, the peer can still be told why it is left.
  if (status.code() == Code::kDataLoss)
    fail_transfers_after_frame(channel, *refusal(peer));
  else
    fail_transfers(channel, *refusal(peer));
  channel.link->unwatch();
  if (events_.on_peer_end) events_.on_peer_end(peer, *channel.end);
}

bool Messenger::write_some(Rank peer) {
  const bool moved = write_round(peer);
  Channel& channel = channels_[static_cast<size_t>(peer)];
  if (channel.link != nullptr) channel.link->flush();
  return moved;
}

// Control frames first; then the first body, or its next piece.
Messenger::Outgoing Messenger::next_piece(Channel& channel) {
  auto& queue = channel.urgent.empty() ? channel.bodies : channel.urgent;
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

bool Messenger::write_round(Rank peer) {
  Channel& channel = channels_[static_cast<size_t>(peer)];
  bool moved = false;
  size_t budget = kRoundBytes;
  while (budget > 0) {
    if (!channel.current) {
      if (channel.urgent.empty() && channel.bodies.empty()) break;
      channel.current = next_piece(channel);
      if (!channel.current->owned.empty()) {
        channel.current->body = std::as_bytes(std::span(channel.current->owned));
      }
      if (channel.link->crosses_hosts()) {
        FrameHeader& header = channel.current->header;
        header.body_sum = crc32c(channel.current->body);
        header.header_sum = sum_of(header, channel.frames_out++);
      }
    }
    Outgoing& out = *channel.current;
    const ByteView header = std::as_bytes(std::span(&out.header, 1));
    const size_t header_left = out.sent < sizeof(FrameHeader) ? sizeof(FrameHeader) - out.sent : 0;
    const size_t body_sent = out.sent - std::min(out.sent, sizeof(FrameHeader));
    const std::array<ByteView, 2> pieces = {header.last(header_left), out.body.subspan(body_sent)};
    const auto written = channel.link->write(pieces);
    if (!written.ok()) {
      // The end is announced by the reading side, which first takes what the peer still had to say.
      channel.link->set_blocked(false);
      return moved;
    }
    if (written.value() == 0) {
      channel.link->set_blocked(true);
      return moved;
    }
    moved = true;
    if (watch_) watch_->said(peer);
    out.sent += written.value();
    budget -= std::min(budget, written.value());
    if (out.sent < sizeof(FrameHeader) + out.body.size()) continue;
    if (out.header.type == FrameType::kData) {
      const auto it = bytes_sent_.find(std::string_view(channel.link->kind()));
      if (it != bytes_sent_.end()) {
        it->second += out.body.size();
      } else {
        bytes_sent_[channel.link->kind()] = out.body.size();
      }
    }
    finish(out.transfer, {});
    channel.current.reset();
  }
  channel.link->set_blocked(channel.current.has_value() || !channel.urgent.empty() ||
                            !channel.bodies.empty());
  return moved;
}

bool Messenger::read_some(Rank peer) {
  Channel& channel = channels_[static_cast<size_t>(peer)];
  size_t budget = kRoundBytes;
  bool moved = false;
  while (budget > 0 && !channel.end && !closed_) {
    if (channel.header_read < sizeof(FrameHeader)) {
      const ByteSpan header = std::as_writable_bytes(std::span(&channel.header, 1));
      const auto got = channel.link->read(header.subspan(channel.header_read));
      if (!got.ok()) {
        end_peer(peer, got.status());
        return true;
      }
      if (got.value() == 0) break;
      moved = true;
      if (watch_) watch_->heard(peer);
      channel.header_read += got.value();
      if (channel.header_read < sizeof(FrameHeader)) continue;
      channel.body_sum = 0;
      const bool damaged = channel.link->crosses_hosts() &&
                           sum_of(channel.header, channel.frames_in++) != channel.header.header_sum;
      const Status begun =
          damaged ? Status(Code::kDataLoss, "damaged frame (the checksum of its header is wrong)")
                  : begin_body(channel);
      if (!begun.ok()) {
        end_peer(peer, begun);
        return true;
      }
    }
    const bool has_body = channel.header.type == FrameType::kData ||
                          channel.header.type == FrameType::kControl ||
                          channel.header.type == FrameType::kAbort;
    const uint64_t length = has_body ? channel.header.bytes : 0;
    if (channel.body_read < length) {
      ByteSpan into = channel.target ? channel.target->into.subspan(channel.header.offset, length)
                                     : ByteSpan(channel.body);
      // A dropped body is read through a small buffer again and again.
      if (channel.drop)
        into = into.first(std::min<uint64_t>(into.size(), length - channel.body_read));
      else
        into = into.subspan(channel.body_read);
      const auto got = channel.link->read(into);
      if (!got.ok()) {
        end_peer(peer, got.status());
        return true;
      }
      if (got.value() == 0) break;
      moved = true;
      if (channel.link->crosses_hosts())
        channel.body_sum = crc32c(into.first(got.value()), channel.body_sum);
      if (watch_) watch_->heard(peer);
      channel.body_read += got.value();
      budget -= std::min(budget, got.value());
      if (channel.body_read < length) continue;
    }
    channel.header_read = 0;
    channel.body_read = 0;
    const bool damaged =
        channel.link->crosses_hosts() && channel.body_sum != channel.header.body_sum;
    const Status ended =
        damaged ? Status(Code::kDataLoss, "damaged frame (the checksum of " +
                                              std::to_string(length) + " bytes is wrong)")
                : finish_body(peer);
    if (!ended.ok()) {
      end_peer(peer, ended);
      return true;
    }
  }
  if (moved && channel.link != nullptr) channel.link->flush();
  return moved;
}

Status Messenger::begin_data(Channel& channel) {
  const FrameHeader& header = channel.header;
  if (header.bytes > header.total || header.offset > header.total - header.bytes) {
    return {Code::kDataLoss, "damaged frame (piece outside its message)"};
  }
  if (channel.partial) {
    if (header.tag != channel.partial_tag || header.total != channel.partial->into.size() ||
        header.offset != channel.partial_bytes) {
      return {Code::kDataLoss, "damaged frame (piece of another message)"};
    }
    channel.target = channel.partial;
    return {};
  }
  if (header.offset != 0) return {Code::kDataLoss, "damaged frame (a message without its begin)"};
  const auto recvs = channel.recvs.find(header.tag);
  if (recvs != channel.recvs.end()) {
    const PendingRecv recv = recvs->second.front();
    if (recv.meta != header.meta) {
      return {Code::kDataLoss, "message of type " + std::to_string(header.meta) + " where type " +
                                   std::to_string(recv.meta) + " was expected"};
    }
    if (recv.into.size() != header.total) {
      return {Code::kDataLoss, "message of " + std::to_string(header.total) + " bytes where " +
                                   std::to_string(recv.into.size()) + " were expected"};
    }
    channel.target = recv;
    recvs->second.pop_front();
    if (recvs->second.empty()) channel.recvs.erase(recvs);
    return {};
  }
  if (!is_eager(channel, header.tag, header.total) || header.bytes != header.total) {
    return {Code::kDataLoss, "a body came without a grant"};
  }
  if (channel.unexpected_bytes + header.bytes > kMaxUnexpectedBytes) {
    return {Code::kDataLoss, "too many messages that nobody asked for"};
  }
  channel.body.resize(header.bytes);
  return {};
}

// Decides where the body goes.
Status Messenger::begin_body(Channel& channel) {
  const FrameHeader& header = channel.header;
  channel.target.reset();
  channel.drop = false;
  channel.body.clear();
  if (header.magic != FrameHeader::kMagic)
    return {Code::kDataLoss, "damaged frame (no magic number)"};
  if (header.epoch != epoch_) {
    channel.drop = true;
    channel.body.resize(std::min<uint64_t>(header.bytes, 64 << 10));
    return {};
  }
  switch (header.type) {
    case FrameType::kData: return begin_data(channel);
    case FrameType::kControl:
      if (header.bytes > kMaxControlBytes) return {Code::kDataLoss, "control message too large"};
      channel.body.resize(header.bytes);
      return {};
    case FrameType::kAbort:
      if (header.bytes == 0 || header.bytes > kMaxAbortBytes)
        return {Code::kDataLoss, "damaged abort message"};
      channel.body.resize(header.bytes);
      return {};
    case FrameType::kGrant:
    case FrameType::kRefuse:
    case FrameType::kBeat:
    case FrameType::kGoodbye: return {};
  }
  return {Code::kDataLoss, "damaged frame (unknown type)"};
}

Status Messenger::finish_data(Channel& channel) {
  const FrameHeader& header = channel.header;
  if (channel.target) {
    const bool last = header.offset + header.bytes == header.total;
    if (last) finish(channel.target->transfer, {});
    channel.partial = last ? std::nullopt : channel.target;
    channel.partial_tag = header.tag;
    channel.partial_bytes = header.offset + header.bytes;
    channel.target.reset();
    return {};
  }
  // Nobody had asked for it when it began to arrive; somebody may have by now.
  const auto recvs = channel.recvs.find(header.tag);
  if (recvs != channel.recvs.end()) {
    const PendingRecv recv = recvs->second.front();
    if (recv.into.size() != channel.body.size() || recv.meta != header.meta) {
      return {Code::kDataLoss, "message of the wrong size or type"};
    }
    std::copy(channel.body.begin(), channel.body.end(), recv.into.begin());
    recvs->second.pop_front();
    if (recvs->second.empty()) channel.recvs.erase(recvs);
    finish(recv.transfer, {});
    return {};
  }
  channel.unexpected_bytes += channel.body.size();
  channel.unexpected[header.tag].push_back({std::move(channel.body), header.meta});
  channel.body = {};
  return {};
}

Status Messenger::finish_body(Rank peer) {
  Channel& channel = channels_[static_cast<size_t>(peer)];
  const FrameHeader header = channel.header;
  if (channel.drop) return {};
  const std::string_view text(reinterpret_cast<const char*>(channel.body.data()),
                              channel.body.size());
  switch (header.type) {
    case FrameType::kData: return finish_data(channel);
    case FrameType::kGrant:
      channel.grants[header.tag].push_back({header.bytes, header.meta});
      release_sends(channel, header.tag);
      return {};
    case FrameType::kRefuse: {
      const auto recvs = channel.recvs.find(header.tag);
      if (recvs == channel.recvs.end())
        return {Code::kDataLoss, "refusal of a grant that was not given"};
      const PendingRecv recv = recvs->second.front();
      recvs->second.pop_front();
      if (recvs->second.empty()) channel.recvs.erase(recvs);
      finish(recv.transfer,
             failed_precondition("sizes or types differ: this rank expected " +
                                 std::to_string(recv.into.size()) + " bytes (type " +
                                 std::to_string(recv.meta) + "), " + channel.name + " sent " +
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

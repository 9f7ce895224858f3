// Frames in.
#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/transport/checksum.h"
#include "collectives/transport/tag_transport.h"

namespace rueda::transport {
namespace {

constexpr size_t kSinkBytes = 64 << 10;

Status damaged(const std::string& how) { return {Code::kDataLoss, "damaged frame (" + how + ")"}; }

}  // namespace

Result<size_t> TagTransport::read_from(Rank rank, ByteSpan into) {
  auto got = state_of(rank).connection->read(into);
  if (watch_ && got.ok() && got.value() > 0) watch_->heard(rank);
  return got;
}

bool TagTransport::read_some(Rank rank) {
  PeerState& peer = state_of(rank);
  Reading& reading = peer.reading;
  size_t budget = kRoundBytes;
  bool moved = false;
  const auto lose = [&](const Status& status) {
    end_peer(rank, status);
    return true;
  };
  while (budget > 0 && !peer.end && !closed_) {
    if (reading.header_read < sizeof(FrameHeader)) {
      const ByteSpan header = std::as_writable_bytes(std::span(&reading.header, 1));
      const auto got = read_from(rank, header.subspan(reading.header_read));
      if (!got.ok()) return lose(got.status());
      if (got.value() == 0) break;
      moved = true;
      reading.header_read += got.value();
      if (reading.header_read < sizeof(FrameHeader)) continue;
      const Status begun = begin_body(peer);
      if (!begun.ok()) return lose(begun);
    }
    const uint64_t length = has_body(reading.header.type) ? reading.header.bytes : 0;
    if (reading.body_read < length) {
      const ByteSpan into = place_of_body(peer);
      const auto got = read_from(rank, into);
      if (!got.ok()) return lose(got.status());
      if (got.value() == 0) break;
      moved = true;
      if (peer.crosses_hosts) reading.body_sum = crc32c(into.first(got.value()), reading.body_sum);
      reading.body_read += got.value();
      budget -= std::min(budget, got.value());
      if (reading.body_read < length) continue;
    }
    reading.header_read = 0;
    const Status ended = finish_body(rank);
    if (!ended.ok()) return lose(ended);
  }
  if (moved && peer.connection != nullptr) peer.connection->flush();
  return moved;
}

// The header is there: decides where the body goes.
Status TagTransport::begin_body(PeerState& peer) {
  Reading& reading = peer.reading;
  const FrameHeader& header = reading.header;
  reading.body_read = 0;
  reading.body_sum = 0;
  if (peer.crosses_hosts && header_sum_of(header, peer.frames_in++) != header.header_sum)
    return damaged("the checksum of its header is wrong");
  if (header.magic != FrameHeader::kMagic) return damaged("no magic number");
  reading.other_epoch = header.epoch != epoch_;
  if (reading.other_epoch) return {};
  switch (header.type) {
    case FrameType::kData: return begin_data(peer);
    case FrameType::kControl:
      if (header.bytes > kMaxControlBytes) return {Code::kDataLoss, "control message too large"};
      reading.control.resize(header.bytes);
      return {};
    case FrameType::kAbort:
      if (header.bytes == 0 || header.bytes > kMaxAbortBytes)
        return {Code::kDataLoss, "damaged abort message"};
      reading.control.resize(header.bytes);
      return {};
    case FrameType::kGrant:
    case FrameType::kRefuse:
    case FrameType::kBeat:
    case FrameType::kGoodbye: return {};
  }
  return damaged("unknown type");
}

Status TagTransport::begin_data(PeerState& peer) {
  Reading& reading = peer.reading;
  const FrameHeader& header = reading.header;
  if (header.bytes > header.total || header.offset > header.total - header.bytes)
    return damaged("piece outside its message");
  if (reading.arriving) {
    const bool next = header.tag == reading.tag && header.total == reading.total &&
                      header.offset == reading.arrived;
    return next ? Status() : damaged("piece of another message");
  }
  if (header.offset != 0) return damaged("a message without its begin");
  Transfer* recv = nullptr;
  TagQueues* const queues = peer.tags.find(header.tag);
  if (queues != nullptr && !queues->recvs.empty()) {
    recv = queues->recvs.front();
    if (recv->meta_ != header.meta) {
      return {Code::kDataLoss, "message of type " + std::to_string(header.meta) + " where type " +
                                   std::to_string(recv->meta_) + " was expected"};
    }
    if (recv->bytes_ != header.total) {
      return {Code::kDataLoss, "message of " + std::to_string(header.total) + " bytes where " +
                                   std::to_string(recv->bytes_) + " were expected"};
    }
    recv->unlink();
    peer.tags.drop_if_empty(queues);
    recv->stage_ = Transfer::Stage::kFilling;
    if (recv->orphan_) finish(std::exchange(recv, nullptr), {});
  } else if (!expired_.contains(header.tag)) {
    if (!is_eager(peer, header.tag, header.total) || header.bytes != header.total)
      return {Code::kDataLoss, "a body came without a grant"};
    if (peer.unexpected_bytes + header.bytes > kMaxUnexpectedBytes)
      return {Code::kDataLoss, "too many messages that nobody asked for"};
    reading.unexpected = unexpected_.take(header.bytes, header.meta);
    return {};
  }
  reading.arriving = true;
  reading.tag = header.tag;
  reading.total = header.total;
  reading.arrived = 0;
  reading.transfer = recv;
  return {};
}

// Asked for each time: the receive may be cancelled while its body comes.
ByteSpan TagTransport::place_of_body(PeerState& peer) {
  Reading& reading = peer.reading;
  const uint64_t left = reading.header.bytes - reading.body_read;
  if (!reading.other_epoch) {
    if (reading.header.type != FrameType::kData)
      return std::as_writable_bytes(std::span(reading.control)).last(left);
    if (reading.unexpected != nullptr) return reading.unexpected->body().last(left);
    if (reading.transfer != nullptr)
      return {reading.transfer->data_ + reading.header.offset + reading.body_read, left};
  }
  sink_.resize(kSinkBytes);
  return ByteSpan(sink_).first(std::min<uint64_t>(kSinkBytes, left));
}

Status TagTransport::finish_body(Rank rank) {
  PeerState& peer = state_of(rank);
  const FrameHeader header = peer.reading.header;
  if (peer.crosses_hosts && peer.reading.body_sum != header.body_sum) {
    return damaged("the checksum of " + std::to_string(peer.reading.body_read) + " bytes is wrong");
  }
  if (peer.reading.other_epoch) return {};
  switch (header.type) {
    case FrameType::kData: return finish_data(peer);
    case FrameType::kGrant: hear_grant(peer, header); return {};
    case FrameType::kRefuse: return hear_refusal(peer, header);
    case FrameType::kControl: {
      const std::string message = std::move(peer.reading.control);
      peer.reading.control.clear();
      if (events_.on_control) events_.on_control(rank, message);
      return {};
    }
    case FrameType::kAbort: {
      const std::string text = std::move(peer.reading.control);
      peer.reading.control.clear();
      return hear_abort(rank, header.tag, text);
    }
    case FrameType::kBeat: return {};
    case FrameType::kGoodbye: end_peer(rank, {}); return {};
  }
  return {};
}

Status TagTransport::hear_abort(Rank rank, Tag about, std::string_view text) {
  const auto code = static_cast<uint8_t>(text[0]);
  if (code == static_cast<uint8_t>(Code::kOk) ||
      code > static_cast<uint8_t>(Code::kUnauthenticated) || about > peers_.size()) {
    return {Code::kDataLoss, "damaged abort message"};
  }
  const Status verdict(static_cast<Code>(code), std::string(text.substr(1)));
  if (events_.on_abort) events_.on_abort(rank, verdict.with_rank(static_cast<Rank>(about) - 1));
  return {};
}

Status TagTransport::finish_data(PeerState& peer) {
  Reading& reading = peer.reading;
  if (reading.unexpected != nullptr) return finish_unexpected(peer);
  reading.arrived += reading.header.bytes;
  if (reading.arrived < reading.total) return {};
  reading.arriving = false;
  if (reading.transfer != nullptr) finish(std::exchange(reading.transfer, nullptr), {});
  return {};
}

// Nobody had asked for it when it began to arrive; somebody may have by now, or its tag is dead.
Status TagTransport::finish_unexpected(PeerState& peer) {
  Unexpected* message = std::exchange(peer.reading.unexpected, nullptr);
  const Tag tag = peer.reading.header.tag;
  TagQueues* queues = peer.tags.find(tag);
  const bool dead = expired_.contains(tag);
  if (!dead && (queues == nullptr || queues->recvs.empty())) {
    peer.unexpected_bytes += message->bytes;
    peer.tags.get(tag)->unexpected.push_back(message);
    return {};
  }
  Status status;
  if (!dead) {
    Transfer* const recv = queues->recvs.front();
    if (recv->bytes_ != message->bytes || recv->meta_ != message->meta) {
      status = {Code::kDataLoss, "message of the wrong size or type"};
    } else {
      if (message->bytes > 0 && recv->data_ != nullptr)
        std::memcpy(recv->data_, message->body().data(), message->bytes);
      finish(recv, {});
      peer.tags.drop_if_empty(queues);
    }
  }
  unexpected_.give_back(message);
  return status;
}

}  // namespace rueda::transport

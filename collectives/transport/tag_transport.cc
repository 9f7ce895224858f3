// How a TagTransport lives and ends.
#include "collectives/transport/tag_transport.h"

#include <algorithm>
#include <utility>

#include "collectives/base/check.h"

namespace rueda::transport {

static_assert(TagTransport::kFarEagerBytes <= UnexpectedPool::kMostBytes);

TagTransport::TagTransport(Rank rank, uint64_t epoch, std::vector<Peer> peers,
                           host::EventLoop* loop, host::Doorbell* doorbell)
    : rank_(rank),
      epoch_(epoch),
      peers_(peers.size()),
      loop_(loop),
      doorbell_(doorbell),
      unexpected_(peers.size() * kKeptBytes) {
  for (size_t i = 0; i < peers.size(); ++i) {
    RUEDA_CHECK(static_cast<Rank>(i) == rank_ || peers[i].connection != nullptr,
                "every peer needs a connection");
    peers_[i].connection = std::move(peers[i].connection);
    peers_[i].name = std::move(peers[i].name);
    if (peers_[i].connection == nullptr) continue;
    peers_[i].crosses_hosts = peers_[i].connection->crosses_hosts();
    peers_[i].kind = peers_[i].connection->kind();
  }
}

TagTransport::~TagTransport() {
  if (watch_timer_.get() >= 0) loop_->remove(watch_timer_.get());
  close(cancelled("the transport was closed"));
}

FrameHeader TagTransport::header_of(FrameType type, Tag tag, uint64_t bytes, uint16_t meta) const {
  FrameHeader header;
  header.type = type;
  header.tag = tag;
  header.bytes = bytes;
  header.total = bytes;
  header.meta = meta;
  header.epoch = epoch_;
  return header;
}

void TagTransport::post(PeerState& peer, const FrameHeader& header, std::string body) {
  ControlFrame* frame = control_frames_.take();
  frame->header = header;
  frame->body = std::move(body);
  peer.urgent.push_back(frame);
}

void TagTransport::give_back(ControlFrame* frame) {
  frame->body = {};
  control_frames_.give_back(frame);
}

void TagTransport::finish(Transfer* transfer, Status status) {
  if (transfer->linked()) transfer->unlink();
  if (transfer->orphan_) {
    auto* orphan = static_cast<Orphan*>(transfer);
    orphan->copy = {};
    orphans_.give_back(orphan);
    return;
  }
  transfer->status_ = std::move(status);
  transfer->transport_ = nullptr;
}

void TagTransport::send_control(Rank peer, std::string message) {
  RUEDA_CHECK(peer >= 0 && peer < size() && peer != rank_, "send_control: no such peer");
  RUEDA_CHECK(message.size() <= kMaxControlBytes, "control message too large");
  if (refusal(peer)) return;
  const FrameHeader header = header_of(FrameType::kControl, 0, message.size(), 0);
  post(state_of(peer), header, std::move(message));
  ++control_sent_;
}

bool TagTransport::progress() {
  if (closed_) return false;
  bool moved = false;
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == rank_ || state_of(peer).end) continue;
    moved |= read_some(peer);
    // Whoever was told of a lost peer may have closed everything.
    if (closed_) return true;
    if (!state_of(peer).end) moved |= write_some(peer);
  }
  if (look_is_due_) moved |= look_at_peers();
  return moved;
}

void TagTransport::sleep(std::chrono::nanoseconds timeout) { loop_->sleep(timeout); }

void TagTransport::wake_up() {
  doorbell_->disarm();
  loop_->dispatch();
}

void TagTransport::say_goodbye() {
  for (Rank rank = 0; rank < size(); ++rank) {
    PeerState& peer = state_of(rank);
    if (rank == rank_ || peer.end || peer.goodbye_said) continue;
    peer.goodbye_said = peer.goodbye_waits = true;
  }
}

bool TagTransport::flushed() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const PeerState& peer) {
    return peer.connection == nullptr || !peer.can_be_told() ||
           (!peer.writing.active && peer.urgent.empty() && peer.bodies.empty() &&
            !peer.goodbye_waits);
  });
}

bool TagTransport::has_arrived() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const PeerState& peer) {
    return peer.connection == nullptr || !peer.can_be_told() || peer.connection->has_arrived();
  });
}

void TagTransport::abort(const Status& verdict, bool peers_know) {
  if (closed_) return;
  if (peers_know) return close(verdict);
  for (Rank rank = 0; rank < size(); ++rank) {
    PeerState& peer = state_of(rank);
    if (rank == rank_ || !peer.can_be_told()) continue;
    fail_transfers_after_frame(peer, verdict);
    std::string body(1, static_cast<char>(verdict.code()));
    body += verdict.message().substr(0, kMaxAbortBytes - 1);
    const auto about = static_cast<Tag>(verdict.facts().rank + 1);
    const FrameHeader header = header_of(FrameType::kAbort, about, body.size(), 0);
    post(peer, header, std::move(body));
  }
  const auto deadline = std::chrono::steady_clock::now() + kAbortLinger;
  while (true) {
    for (Rank rank = 0; rank < size(); ++rank) {
      if (rank != rank_ && state_of(rank).can_be_told()) write_some(rank);
    }
    if ((flushed() && has_arrived()) || std::chrono::steady_clock::now() >= deadline) break;
    loop_->wait(std::chrono::milliseconds(1));
  }
  close(verdict);
}

void TagTransport::close(const Status& status) {
  if (closed_) return;
  closed_ = status;
  for (PeerState& peer : peers_) {
    fail_transfers(peer, status);
    peer.tags.for_each([&](TagQueues& queues) {
      while (!queues.unexpected.empty()) drop_unexpected(peer, &queues);
    });
    if (peer.connection == nullptr) continue;
    peer.connection->flush();
    peer.connection->finish();
    peer.connection.reset();
  }
}

uint64_t TagTransport::bytes_sent(std::string_view kind) const {
  uint64_t bytes = 0;
  for (const PeerState& peer : peers_) bytes += peer.kind == kind ? peer.bytes_sent : 0;
  return bytes;
}

size_t TagTransport::tags_in_use() const {
  size_t tags = 0;
  for (const PeerState& peer : peers_) tags += peer.tags.tags();
  return tags;
}

}  // namespace rueda::transport

// Transfers that end before their time: cancelled, expired, with their peer, with the transport.
#include <utility>

#include "collectives/base/check.h"
#include "collectives/transport/tag_transport.h"

namespace rueda::transport {

void TagTransport::cancel(Transfer* transfer) {
  if (transfer->done()) return;
  RUEDA_CHECK(transfer->transport_ == this, "the transfer is another transport's");
  withdraw(transfer);
  finish(transfer, cancelled("the transfer was cancelled"));
}

// The caller's memory is not touched after it.
void TagTransport::withdraw(Transfer* transfer) {
  PeerState& peer = state_of(transfer->peer_);
  switch (transfer->stage_) {
    case Transfer::Stage::kWaiting:
      transfer->unlink();
      return release_sends(peer, peer.tags.find(transfer->tag_));
    case Transfer::Stage::kQueued: {
      transfer->unlink();
      TagQueues* queues = peer.tags.find(transfer->tag_);
      if (!transfer->eager_) --queues->promised;
      return release_sends(peer, queues);
    }
    case Transfer::Stage::kLeaving: return withdraw_leaving(peer, transfer);
    case Transfer::Stage::kPosted:
      peer.tags.find(transfer->tag_)->recvs.replace(transfer, make_orphan(*transfer));
      return;
    case Transfer::Stage::kFilling: peer.reading.transfer = nullptr; return;
  }
}

void TagTransport::withdraw_leaving(PeerState& peer, Transfer* send) {
  const Writing& writing = peer.writing;
  const bool only_prepared = writing.transfer == send && writing.sent == 0 &&
                             writing.body.size() + send->left_ == send->bytes_;
  if (!only_prepared) {
    go_on_from_copy(peer, send, send->left_);
    return;
  }
  drop_frame(peer);
  send->unlink();
  // Its grant is the next one's.
  if (!send->eager_) add_grant(peer.tags.get(send->tag_), send->bytes_, send->meta_, true);
  release_sends(peer, peer.tags.find(send->tag_));
}

Orphan* TagTransport::make_orphan(const Transfer& transfer) {
  Orphan* orphan = orphans_.take();
  orphan->tag_ = transfer.tag_;
  orphan->data_ = nullptr;
  orphan->left_ = 0;
  orphan->bytes_ = transfer.bytes_;
  orphan->peer_ = transfer.peer_;
  orphan->meta_ = transfer.meta_;
  orphan->stage_ = transfer.stage_;
  orphan->eager_ = transfer.eager_;
  orphan->orphan_ = true;
  return orphan;
}

// The frame that is leaving, if it is the send's, and `left` bytes behind it. Peers take the pieces
// of a message for whole only in a row, so a message that has begun must be brought to its end.
Orphan* TagTransport::go_on_from_copy(PeerState& peer, Transfer* send, uint64_t left) {
  Writing& writing = peer.writing;
  const bool in_frame = writing.transfer == send;
  const size_t framed = in_frame ? writing.body.size() : 0;  // they lie in front of data_
  Orphan* orphan = make_orphan(*send);
  orphan->copy.assign(send->data_ - framed, send->data_ + left);
  orphan->data_ = orphan->copy.data() + framed;
  orphan->left_ = left;
  peer.bodies.replace(send, orphan);
  if (in_frame) {
    writing.transfer = orphan;
    writing.body = ByteView(orphan->copy).first(framed);
  }
  return orphan;
}

void TagTransport::expire(Tag first, Tag last) {
  RUEDA_CHECK(first <= last, "a range of tags ends before it begins");
  expired_.add(first, last);
  for (PeerState& peer : peers_) expire(peer, first, last);
}

void TagTransport::expire(PeerState& peer, Tag first, Tag last) {
  const auto is_dead = [&](Tag tag) { return first <= tag && tag <= last; };
  const Status status = cancelled("the tag of the transfer has expired");
  peer.tags.for_each([&](TagQueues& queues) {
    if (!is_dead(queues.tag)) return;
    while (Transfer* const send = queues.sends.front()) finish(send, status);
    while (Transfer* const recv = queues.recvs.front()) finish(recv, status);
    while (!queues.unexpected.empty()) drop_unexpected(peer, &queues);
  });
  for (Transfer* send = peer.bodies.front(); send != nullptr;) {
    Transfer* const next = peer.bodies.after(send);
    if (is_dead(send->tag_) && !send->orphan_) {
      withdraw(send);
      finish(send, status);
    }
    send = next;
  }
  peer.tags.for_each([&](TagQueues& queues) {
    while (is_dead(queues.tag) && !queues.grants.empty()) drop_grant(&queues);
  });
  if (peer.reading.transfer != nullptr && is_dead(peer.reading.tag))
    finish(std::exchange(peer.reading.transfer, nullptr), status);
  // Grants that have not left need not.
  for (ControlFrame* frame = peer.urgent.front(); frame != nullptr;) {
    ControlFrame* const next = peer.urgent.after(frame);
    if (frame->header.type == FrameType::kGrant && is_dead(frame->header.tag)) {
      frame->unlink();
      give_back(frame);
    }
    frame = next;
  }
}

// A frame that has not begun to leave gives its number back.
void TagTransport::drop_frame(PeerState& peer) {
  Writing& writing = peer.writing;
  if (!writing.active) return;
  if (writing.sent > 0)
    peer.cut_short = true;
  else if (peer.crosses_hosts)
    --peer.frames_out;
  if (writing.control != nullptr) give_back(writing.control);
  if (writing.transfer != nullptr && !writing.transfer->linked()) finish(writing.transfer, {});
  writing = {};
}

void TagTransport::fail_transfers(PeerState& peer, const Status& status) {
  drop_frame(peer);
  while (Transfer* const send = peer.bodies.front()) finish(send, status);
  peer.tags.for_each([&](TagQueues& queues) {
    while (Transfer* const send = queues.sends.front()) finish(send, status);
    while (Transfer* const recv = queues.recvs.front()) finish(recv, status);
    while (!queues.grants.empty()) drop_grant(&queues);
    queues.promised = 0;
  });
  while (!peer.urgent.empty()) give_back(peer.urgent.pop_front());
  peer.goodbye_waits = false;
  Reading& reading = peer.reading;
  if (reading.transfer != nullptr) finish(std::exchange(reading.transfer, nullptr), status);
  if (reading.unexpected != nullptr)
    unexpected_.give_back(std::exchange(reading.unexpected, nullptr));
}

// A frame that has begun must be finished before another can follow: from a copy, the caller's
// memory is not ours any more.
void TagTransport::fail_transfers_after_frame(PeerState& peer, const Status& status) {
  if (!peer.writing.active || peer.writing.sent == 0) return fail_transfers(peer, status);
  if (Transfer* send = peer.writing.transfer) {
    if (!send->orphan_) {
      Transfer* const mine = go_on_from_copy(peer, send, 0);
      finish(send, status);
      send = mine;
    }
    send->left_ = 0;
    if (send->linked()) send->unlink();  // it is the frame's alone
  }
  const Writing frame = std::exchange(peer.writing, {});
  fail_transfers(peer, status);
  peer.writing = frame;
}

void TagTransport::end_peer(Rank rank, const Status& status) {
  PeerState& peer = state_of(rank);
  if (peer.end) return;
  peer.end = status.with_message(peer.name + " was lost: " + status.message()).with_rank(rank);
  // Where only what comes in is damaged, the peer can still be told why it is left.
  if (status.code() == Code::kDataLoss)
    fail_transfers_after_frame(peer, *refusal(rank));
  else
    fail_transfers(peer, *refusal(rank));
  peer.connection->unwatch();
  if (events_.on_peer_end) events_.on_peer_end(rank, *peer.end);
}

}  // namespace rueda::transport

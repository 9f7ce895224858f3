// What meets what: sends their grants, messages their receives.
#include <cstring>
#include <utility>

#include "collectives/base/check.h"
#include "collectives/transport/tag_transport.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace rueda::transport {
namespace {

std::string bytes_of_type(uint64_t bytes, uint16_t meta) {
  if ((meta & kGpuMeta) != 0) return "a GPU tensor (type " + std::to_string(meta & ~kGpuMeta) + ")";
  return std::to_string(bytes) + " bytes (type " + std::to_string(meta) + ")";
}

// Here it was expected, the peer has sent; or the other way round.
Status mismatch_of_recv(uint64_t expected, uint16_t expected_meta, uint64_t sent,
                        uint16_t sent_meta, const std::string& peer) {
  return failed_precondition("sizes or types differ: this rank expected " +
                             bytes_of_type(expected, expected_meta) + ", " + peer + " sent " +
                             bytes_of_type(sent, sent_meta))
      .with_met({sent, sent_meta});
}
Status mismatch_of_send(uint64_t sent, uint16_t sent_meta, uint64_t expected,
                        uint16_t expected_meta, const std::string& peer) {
  return failed_precondition("sizes or types differ: this rank sent " +
                             bytes_of_type(sent, sent_meta) + ", " + peer + " expects " +
                             bytes_of_type(expected, expected_meta))
      .with_met({expected, expected_meta});
}

Status expired() { return cancelled("the tag of the transfer has expired"); }

}  // namespace

void TagTransport::prepare(Transfer* transfer, Rank peer, Tag tag, uint64_t bytes, uint16_t meta) {
  RUEDA_CHECK(peer >= 0 && peer < size(), "a transfer with no such rank");
  RUEDA_CHECK(transfer->done(), "a transfer is used again only when it is done");
  transfer->tag_ = tag;
  transfer->bytes_ = bytes;
  transfer->peer_ = peer;
  transfer->meta_ = meta;
  transfer->eager_ = peer != rank_ && is_eager(state_of(peer), tag, bytes);
}

std::optional<Status> TagTransport::refusal(Rank peer) const {
  if (closed_) return closed_;
  const PeerState& state = state_of(peer);
  if (!state.end) return std::nullopt;
  if (state.end->ok())
    return cancelled(state.name + " has left (it called shutdown or ended)").with_rank(peer);
  return state.end;
}

void TagTransport::send(Transfer* transfer, Rank rank, Tag tag, ByteView bytes, uint16_t meta) {
  prepare(transfer, rank, tag, bytes.size(), meta);
  if (const auto status = refusal(rank)) return finish(transfer, *status);
  if (expired_.contains(tag)) return finish(transfer, expired());
  transfer->transport_ = this;
  transfer->data_ = const_cast<std::byte*>(bytes.data());
  transfer->left_ = bytes.size();
  PeerState& peer = state_of(rank);
  TagQueues* queues = peer.tags.find(tag);
  if (transfer->eager_ && (queues == nullptr || queues->sends.empty())) {
    transfer->stage_ = Transfer::Stage::kQueued;
    peer.bodies.push_back(transfer);
    return;
  }
  if (queues == nullptr) queues = peer.tags.get(tag);
  transfer->stage_ = Transfer::Stage::kWaiting;
  queues->sends.push_back(transfer);
  rank == rank_ ? match_self(peer, queues) : release_sends(peer, queues);
}

void TagTransport::recv(Transfer* transfer, Rank rank, Tag tag, ByteSpan bytes, uint16_t meta) {
  prepare(transfer, rank, tag, bytes.size(), meta);
  transfer->data_ = bytes.data();
  if (expired_.contains(tag) && !closed_) return finish(transfer, expired());
  PeerState& peer = state_of(rank);
  // What has already arrived is delivered even if the peer has left since.
  if (take_unexpected(peer, transfer)) return;
  if (const auto status = refusal(rank)) return finish(transfer, *status);
  transfer->transport_ = this;
  transfer->stage_ = Transfer::Stage::kPosted;
  TagQueues* queues = peer.tags.get(tag);
  queues->recvs.push_back(transfer);
  if (rank == rank_) {
    match_self(peer, queues);
  } else if (!transfer->eager_) {
    post(peer, header_of(FrameType::kGrant, tag, bytes.size(), meta));
  }
}

void TagTransport::reserve(std::span<const size_t> sizes) {
  size_t others = 0;
  for (PeerState& peer : peers_) {
    if (peer.connection == nullptr) continue;
    ++others;
    // Each may be alone under its tag, beside a recv of this rank's.
    peer.tags.reserve(2 * sizes.size());
  }
  grants_.reserve(2 * sizes.size() * others);
  control_frames_.reserve(2 * sizes.size() * others);
  std::vector<size_t> sorted(sizes.begin(), sizes.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (size_t i = 0; i < sorted.size(); ++i) {
    // Larger ones do for smaller ones, so of each size there have to be those that are no smaller.
    if (i + 1 == sorted.size() || sorted[i + 1] != sorted[i])
      unexpected_.reserve(std::min(sorted[i], UnexpectedPool::kMostBytes), (i + 1) * others);
  }
}

bool TagTransport::take_unexpected(PeerState& peer, Transfer* recv) {
  TagQueues* queues = peer.tags.find(recv->tag_);
  if (queues == nullptr || queues->unexpected.empty()) return false;
  Unexpected* message = queues->unexpected.front();
  Status status;
  if (message->bytes != recv->bytes_ || message->meta != recv->meta_) {
    status = mismatch_of_recv(recv->bytes_, recv->meta_, message->bytes, message->meta, peer.name);
  } else if (message->bytes > 0) {
    std::memcpy(recv->data_, message->body().data(), message->bytes);
  }
  drop_unexpected(peer, queues);
  peer.tags.drop_if_empty(queues);
  finish(recv, std::move(status));
  return true;
}

// The first one.
void TagTransport::drop_unexpected(PeerState& peer, TagQueues* queues) {
  Unexpected* message = queues->unexpected.pop_front();
  peer.unexpected_bytes -= message->bytes;
  unexpected_.give_back(message);
}

void TagTransport::match_self(PeerState& peer, TagQueues* queues) {
  while (!queues->sends.empty() && !queues->recvs.empty()) {
    Transfer* const from = queues->sends.front();
    Transfer* const into = queues->recvs.front();
    Status status;
    if (from->bytes_ != into->bytes_ || from->meta_ != into->meta_) {
      status = mismatch_of_recv(into->bytes_, into->meta_, from->bytes_, from->meta_, "this rank");
    } else if (from->bytes_ > 0 && into->data_ != nullptr) {
      std::memmove(into->data_, from->data_, from->bytes_);
    }
    finish(from, status);
    finish(into, status);
  }
  peer.tags.drop_if_empty(queues);
}

// Sends leave in order: an eager one behind one that waits for its grant waits too. Whether grant
// and send agree is seen when the send's turn has come (take_grant): one that is cancelled before
// leaves its grant to the next.
void TagTransport::release_sends(PeerState& peer, TagQueues* queues) {
  if (queues == nullptr) return;
  while (Transfer* const send = queues->sends.front()) {
    if (!send->eager_ && queues->promised == queues->granted) break;
    if (!send->eager_) ++queues->promised;
    send->unlink();
    send->stage_ = Transfer::Stage::kQueued;
    peer.bodies.push_back(send);
  }
  peer.tags.drop_if_empty(queues);
}

void TagTransport::add_grant(TagQueues* queues, uint64_t bytes, uint16_t meta, bool first) {
  Grant* grant = grants_.take();
  grant->bytes = bytes;
  grant->meta = meta;
  ++queues->granted;
  first ? queues->grants.push_front(grant) : queues->grants.push_back(grant);
}

// The first one.
void TagTransport::drop_grant(TagQueues* queues) {
  grants_.give_back(queues->grants.pop_front());
  --queues->granted;
}

// An error where it is not for this send.
Status TagTransport::take_grant(PeerState& peer, const Transfer& send) {
  TagQueues* queues = peer.tags.find(send.tag_);
  const uint64_t bytes = queues->grants.front()->bytes;
  const uint16_t meta = queues->grants.front()->meta;
  drop_grant(queues);
  --queues->promised;
  peer.tags.drop_if_empty(queues);
  if (bytes == send.bytes_ && meta == send.meta_) return {};
  return mismatch_of_send(send.bytes_, send.meta_, bytes, meta, peer.name);
}

void TagTransport::hear_grant(PeerState& peer, const FrameHeader& grant) {
  if (expired_.contains(grant.tag)) return;
  TagQueues* queues = peer.tags.get(grant.tag);
  add_grant(queues, grant.bytes, grant.meta);
  release_sends(peer, queues);
}

Status TagTransport::hear_refusal(PeerState& peer, const FrameHeader& refusal) {
  if (expired_.contains(refusal.tag)) return {};
  TagQueues* queues = peer.tags.find(refusal.tag);
  if (queues == nullptr || queues->recvs.empty())
    return {Code::kDataLoss, "refusal of a grant that was not given"};
  Transfer* const recv = queues->recvs.front();
  finish(recv, mismatch_of_recv(recv->bytes_, recv->meta_, refusal.bytes, refusal.meta, peer.name));
  peer.tags.drop_if_empty(queues);
  return {};
}

}  // namespace rueda::transport

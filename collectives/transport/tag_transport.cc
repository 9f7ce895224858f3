#include "collectives/transport/tag_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/base/check.h"

namespace rueda::transport {
namespace {

std::string describe_mismatch(uint64_t sent, uint16_t sent_meta, uint64_t expected,
                              uint16_t expected_meta, const std::string& peer, bool peer_sends) {
  std::string text = "sizes or types differ: ";
  const std::string mine = peer_sends ? "expected" : "sent";
  const uint64_t my_bytes = peer_sends ? expected : sent;
  const uint16_t my_meta = peer_sends ? expected_meta : sent_meta;
  const uint64_t their_bytes = peer_sends ? sent : expected;
  const uint16_t their_meta = peer_sends ? sent_meta : expected_meta;
  text += "this rank " + mine + " " + std::to_string(my_bytes) + " bytes (type " +
          std::to_string(my_meta) + "), " + peer + (peer_sends ? " sent " : " expects ") +
          std::to_string(their_bytes) + " bytes (type " + std::to_string(their_meta) + ")";
  return text;
}

template <typename Map>
void drop_if_empty(Map* map, Tag tag) {
  const auto it = map->find(tag);
  if (it != map->end() && it->second.empty()) map->erase(it);
}

}  // namespace

TagTransport::TagTransport(Rank rank, uint64_t epoch, std::vector<Peer> peers,
                           host::EventLoop* loop, host::Doorbell* doorbell)
    : rank_(rank), epoch_(epoch), loop_(loop), doorbell_(doorbell) {
  peers_.resize(peers.size());
  for (size_t i = 0; i < peers.size(); ++i) {
    peers_[i].connection = std::move(peers[i].connection);
    peers_[i].name = std::move(peers[i].name);
    RUEDA_CHECK(static_cast<Rank>(i) == rank_ || peers_[i].connection != nullptr,
                "every peer needs a connection");
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

void TagTransport::finish(const TransferPtr& transfer, Status status) {
  if (transfer == nullptr || transfer->done) return;
  transfer->done = true;
  transfer->status = std::move(status);
}

std::optional<Status> TagTransport::refusal(Rank peer) const {
  if (closed_) return closed_;
  const PeerState& peer_state = peers_[static_cast<size_t>(peer)];
  if (!peer_state.end) return std::nullopt;
  if (peer_state.end->ok())
    return cancelled(peer_state.name + " has left (it called shutdown or ended)");
  return peer_state.end;
}

TransferPtr TagTransport::send(Rank peer, Tag tag, ByteView bytes, uint16_t meta) {
  RUEDA_CHECK(peer >= 0 && peer < size(), "send: no such rank");
  auto transfer = std::make_shared<Transfer>();
  if (auto status = refusal(peer)) {
    finish(transfer, *status);
    return transfer;
  }
  PeerState& peer_state = peers_[static_cast<size_t>(peer)];
  peer_state.waiting_sends[tag].push_back(
      {bytes, meta, transfer, peer != rank_ && is_eager(peer_state, tag, bytes.size())});
  if (peer == rank_) {
    match_self(peer_state, tag);
  } else {
    release_sends(peer_state, tag);
  }
  return transfer;
}

TransferPtr TagTransport::recv(Rank peer, Tag tag, ByteSpan bytes, uint16_t meta) {
  RUEDA_CHECK(peer >= 0 && peer < size(), "recv: no such rank");
  auto transfer = std::make_shared<Transfer>();
  PeerState& peer_state = peers_[static_cast<size_t>(peer)];
  // What has already arrived is delivered even if the peer has left since.
  if (const auto it = peer_state.unexpected.find(tag);
      it != peer_state.unexpected.end() && !closed_) {
    const Unexpected& message = it->second.front();
    if (message.body.size() == bytes.size() && message.meta == meta) {
      std::copy(message.body.begin(), message.body.end(), bytes.begin());
      finish(transfer, {});
    } else {
      finish(transfer,
             failed_precondition(describe_mismatch(message.body.size(), message.meta, bytes.size(),
                                                   meta, peer_state.name, true)));
    }
    peer_state.unexpected_bytes -= message.body.size();
    it->second.pop_front();
    drop_if_empty(&peer_state.unexpected, tag);
    return transfer;
  }
  if (auto status = refusal(peer)) {
    finish(transfer, *status);
    return transfer;
  }
  peer_state.recvs[tag].push_back({bytes, meta, transfer});
  if (peer == rank_) {
    match_self(peer_state, tag);
  } else if (!is_eager(peer_state, tag, bytes.size())) {
    peer_state.urgent.push_back(
        {header_of(FrameType::kGrant, tag, bytes.size(), meta), {}, {}, 0, nullptr});
  }
  return transfer;
}

void TagTransport::match_self(PeerState& peer_state, Tag tag) {
  auto& sends = peer_state.waiting_sends[tag];
  auto& recvs = peer_state.recvs[tag];
  while (!sends.empty() && !recvs.empty()) {
    const PendingSend from = sends.front();
    const PendingRecv into = recvs.front();
    sends.pop_front();
    recvs.pop_front();
    Status status;
    if (from.body.size() != into.into.size() || from.meta != into.meta) {
      status = failed_precondition(describe_mismatch(from.body.size(), from.meta, into.into.size(),
                                                     into.meta, "this rank", true));
    } else if (!from.body.empty()) {
      std::memmove(into.into.data(), from.body.data(), from.body.size());
    }
    finish(from.transfer, status);
    finish(into.transfer, status);
  }
  drop_if_empty(&peer_state.waiting_sends, tag);
  drop_if_empty(&peer_state.recvs, tag);
}

// Sends leave in order: an eager one behind one that waits for its grant waits too.
void TagTransport::release_sends(PeerState& peer_state, Tag tag) {
  const auto sends = peer_state.waiting_sends.find(tag);
  if (sends == peer_state.waiting_sends.end()) return;
  while (!sends->second.empty()) {
    const PendingSend& send = sends->second.front();
    if (!send.eager) {
      const auto grants = peer_state.grants.find(tag);
      if (grants == peer_state.grants.end()) break;
      const Grant grant = grants->second.front();
      grants->second.pop_front();
      drop_if_empty(&peer_state.grants, tag);
      if (grant.bytes != send.body.size() || grant.meta != send.meta) {
        finish(send.transfer,
               failed_precondition(describe_mismatch(send.body.size(), send.meta, grant.bytes,
                                                     grant.meta, peer_state.name, false)));
        peer_state.bodies.push_back(
            {header_of(FrameType::kRefuse, tag, send.body.size(), send.meta), {}, {}, 0, nullptr});
        sends->second.pop_front();
        continue;
      }
    }
    queue_data(peer_state, tag, send);
    sends->second.pop_front();
  }
  drop_if_empty(&peer_state.waiting_sends, tag);
}

void TagTransport::queue_data(PeerState& peer_state, Tag tag, const PendingSend& send) {
  peer_state.bodies.push_back({header_of(FrameType::kData, tag, send.body.size(), send.meta),
                               send.body,
                               {},
                               0,
                               send.transfer});
}

void TagTransport::send_control(Rank peer, std::string message) {
  RUEDA_CHECK(peer >= 0 && peer < size() && peer != rank_, "send_control: no such peer");
  RUEDA_CHECK(message.size() <= kMaxControlBytes, "control message too large");
  if (refusal(peer)) return;
  PeerState& peer_state = peers_[static_cast<size_t>(peer)];
  Outgoing out{
      header_of(FrameType::kControl, 0, message.size(), 0), {}, std::move(message), 0, nullptr};
  peer_state.urgent.push_back(std::move(out));
  ++control_sent_;
}

bool TagTransport::progress() {
  bool moved = false;
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == rank_ || peers_[static_cast<size_t>(peer)].end) continue;
    moved |= read_some(peer);
    // Whoever was told of a lost peer may have closed everything.
    if (closed_) return true;
    if (!peers_[static_cast<size_t>(peer)].end) moved |= write_some(peer);
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
  for (Rank peer = 0; peer < size(); ++peer) {
    PeerState& peer_state = peers_[static_cast<size_t>(peer)];
    if (peer == rank_ || peer_state.end || peer_state.goodbye_sent) continue;
    peer_state.goodbye_sent = true;
    peer_state.bodies.push_back({header_of(FrameType::kGoodbye, 0, 0, 0), {}, {}, 0, nullptr});
  }
}

bool TagTransport::flushed() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const PeerState& peer_state) {
    return peer_state.connection == nullptr || !can_be_told(peer_state) ||
           (!peer_state.current && peer_state.urgent.empty() && peer_state.bodies.empty());
  });
}

void TagTransport::abort(const Status& verdict, bool peers_know) {
  if (closed_) return;
  if (peers_know) return close(verdict);
  for (Rank peer = 0; peer < size(); ++peer) {
    PeerState& peer_state = peers_[static_cast<size_t>(peer)];
    if (peer == rank_ || !can_be_told(peer_state)) continue;
    fail_transfers_after_frame(peer_state, verdict);
    std::string body(1, static_cast<char>(verdict.code()));
    body += verdict.message().substr(0, kMaxAbortBytes - 1);
    Outgoing out{header_of(FrameType::kAbort, 0, body.size(), 0), {}, std::move(body), 0, nullptr};
    peer_state.urgent.push_back(std::move(out));
  }
  const auto deadline = std::chrono::steady_clock::now() + kAbortLinger;
  while (true) {
    for (Rank peer = 0; peer < size(); ++peer) {
      if (peer != rank_ && can_be_told(peers_[static_cast<size_t>(peer)])) write_some(peer);
    }
    if (flushed() || std::chrono::steady_clock::now() >= deadline) break;
    loop_->wait(std::chrono::milliseconds(1));
  }
  close(verdict);
}

void TagTransport::close(const Status& status) {
  if (closed_) return;
  closed_ = status;
  for (PeerState& peer_state : peers_) {
    fail_transfers(peer_state, status);
    if (peer_state.connection != nullptr) {
      peer_state.connection->flush();
      peer_state.connection->finish();
      peer_state.connection.reset();
    }
  }
}

uint64_t TagTransport::bytes_sent(std::string_view kind) const {
  const auto it = bytes_sent_.find(kind);
  return it == bytes_sent_.end() ? 0 : it->second;
}

}  // namespace rueda::transport

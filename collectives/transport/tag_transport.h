// TagTransport: the Transport over Connections. Frames, matching, flow control: the same for shm,
// tcp, mpi, inproc and their mixture.
//
// Small messages (<= kEagerBytes, between hosts kFarEagerBytes) are sent at once and kept by the
// receiver until a recv asks for them:
//
//     send(tag) --- kData(tag, bytes) body --->  a recv waits: straight into its buffer
//                                                none: kept ("unexpected") until one comes
//
// Larger ones wait for a grant: posting a recv tells the sender that a buffer is there, so bodies
// always go straight to their place and a connection never stalls behind a message that nobody
// wants yet:
//
//     send(tag)                                  recv(tag)
//     waits for the grant  <--- kGrant(tag, bytes, meta) ---
//     bytes, meta agree    --- kData(tag, 0 .. 1 MiB) body --->  buffer
//                          --- kData(tag, 1 MiB .. )  body --->  buffer, done
//     they differ: failed  --- kRefuse(tag, bytes, meta) ---->   failed
//
// Control frames and grants overtake bodies that have not begun, and get between pieces.
//
// A cancelled transfer leaves no trace where that is possible; else the transport puts an object of
// its own in its place (Orphan), which takes the turn, or brings the rest, to the end.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/host/doorbell.h"
#include "collectives/host/event_loop.h"
#include "collectives/transport/expired_tags.h"
#include "collectives/transport/peer_state.h"
#include "collectives/transport/peer_watch.h"
#include "collectives/transport/transport.h"

namespace rueda::transport {

class TagTransport final : public Transport, private host::FdHandler {
 public:
  static constexpr size_t kEagerBytes = 8 << 10;
  // What a connection of 10 Gbit/s carries while a grant is under way.
  static constexpr size_t kFarEagerBytes = 64 << 10;
  // Largest piece of a message in one frame.
  static constexpr size_t kPieceBytes = 1 << 20;
  // Eager bodies that nobody has asked for yet, per peer; beyond it the peer breaks the protocol.
  static constexpr size_t kMaxUnexpectedBytes = 256 << 20;
  // Memory for such bodies that is kept for the next ones, for each peer.
  static constexpr size_t kKeptBytes = 2 << 20;

  // How long abort tries to hand its verdict to peers whose connections are full. Without it they
  // would see only that this rank closed its connections, and take it for the culprit.
  static constexpr std::chrono::milliseconds kAbortLinger{200};

  struct Peer {
    std::unique_ptr<Connection> connection;  // null for this rank itself
    std::string name;                        // "rank 3 (pid 4711 on node2)": for errors
  };

  // loop and doorbell are borrowed and must outlive the transport; peers has one entry per rank.
  TagTransport(Rank rank, uint64_t epoch, std::vector<Peer> peers, host::EventLoop* loop,
               host::Doorbell* doorbell);
  ~TagTransport() override;

  // Signs of life of hosts, shared by the ranks of this one (Arena::heard, this rank's first).
  // host_of: by rank. Without it every peer is a host of its own. Before watch_peers; borrowed.
  void share_signs_of_life(std::vector<int> host_of, std::vector<std::atomic<int64_t>*> boards);

  Rank rank() const override { return rank_; }
  Rank size() const override { return static_cast<Rank>(peers_.size()); }
  void send(Transfer* transfer, Rank peer, Tag tag, ByteView bytes, uint16_t meta = 0) override;
  void recv(Transfer* transfer, Rank peer, Tag tag, ByteSpan bytes, uint16_t meta = 0) override;
  void cancel(Transfer* transfer) override;
  void expire(Tag first, Tag last) override;
  void reserve(std::span<const size_t> sizes) override;
  void send_control(Rank peer, std::string message) override;
  void set_events(TransportEvents events) override { events_ = std::move(events); }
  Status watch_peers(std::chrono::nanoseconds dead_after) override;
  bool progress() override;
  void sleep(std::chrono::nanoseconds timeout) override;
  void wake_up() override;
  void say_goodbye() override;
  bool flushed() const override;
  bool has_arrived() const override;
  void abort(const Status& verdict, bool peers_know = false) override;
  void close(const Status& status) override;
  uint64_t bytes_sent(std::string_view kind) const override;
  uint64_t control_messages_sent() const override { return control_sent_; }
  // With which something waits: a transfer, a grant, a message, the turn of a cancelled recv. None
  // once everything has met.
  size_t tags_in_use() const;

 private:
  // Bytes moved for one peer in one direction before the next has its turn.
  static constexpr size_t kRoundBytes = 4 << 20;

  PeerState& state_of(Rank peer) { return peers_[static_cast<size_t>(peer)]; }
  const PeerState& state_of(Rank peer) const { return peers_[static_cast<size_t>(peer)]; }
  static bool is_eager(const PeerState& peer, Tag tag, size_t bytes) {
    return bytes <= (peer.crosses_hosts ? kFarEagerBytes : kEagerBytes) &&
           (tag & kRendezvousTag) == 0;
  }
  FrameHeader header_of(FrameType type, Tag tag, uint64_t bytes, uint16_t meta) const;
  // Queues a frame of the transport's own.
  void post(PeerState& peer, const FrameHeader& header, std::string body = {});
  void give_back(ControlFrame* frame);
  // Ends a transfer, out of whichever list it is in.
  void finish(Transfer* transfer, Status status);

  // tag_transport_matching.cc
  void prepare(Transfer* transfer, Rank peer, Tag tag, uint64_t bytes, uint16_t meta);
  // The status with which a new transfer with this peer ends at once, if it does.
  std::optional<Status> refusal(Rank peer) const;
  void match_self(PeerState& peer, TagQueues* queues);
  void release_sends(PeerState& peer, TagQueues* queues);
  void add_grant(TagQueues* queues, uint64_t bytes, uint16_t meta, bool first = false);
  void drop_grant(TagQueues* queues);
  Status take_grant(PeerState& peer, const Transfer& send);
  bool take_unexpected(PeerState& peer, Transfer* recv);
  void drop_unexpected(PeerState& peer, TagQueues* queues);
  void hear_grant(PeerState& peer, const FrameHeader& grant);
  Status hear_refusal(PeerState& peer, const FrameHeader& refusal);

  // tag_transport_cancel.cc
  void withdraw(Transfer* transfer);
  void withdraw_leaving(PeerState& peer, Transfer* send);
  Orphan* make_orphan(const Transfer& transfer);
  Orphan* go_on_from_copy(PeerState& peer, Transfer* send, uint64_t left);
  void expire(PeerState& peer, Tag first, Tag last);
  void drop_frame(PeerState& peer);
  void fail_transfers(PeerState& peer, const Status& status);
  void fail_transfers_after_frame(PeerState& peer, const Status& status);
  void end_peer(Rank peer, const Status& status);

  // tag_transport_write.cc
  bool write_some(Rank peer);
  bool write_round(Rank peer);
  bool begin_frame(PeerState& peer);
  void begin_piece(PeerState& peer, Transfer* send);
  void end_frame(PeerState& peer);

  // tag_transport_read.cc
  bool read_some(Rank peer);
  Result<size_t> read_from(Rank peer, ByteSpan into);
  Status begin_body(PeerState& peer);
  Status begin_data(PeerState& peer);
  ByteSpan place_of_body(PeerState& peer);
  Status finish_body(Rank peer);
  Status finish_data(PeerState& peer);
  Status finish_unexpected(PeerState& peer);
  Status hear_abort(Rank peer, Tag about, std::string_view text);

  // tag_transport_watch.cc
  void on_ready(bool readable, bool writable) override;  // the watch's timer
  bool look_at_peers();
  const std::vector<bool>& hosts_heard(std::chrono::steady_clock::time_point now);

  Rank rank_;
  uint64_t epoch_;
  std::vector<PeerState> peers_;
  host::EventLoop* loop_;
  host::Doorbell* doorbell_;
  TransportEvents events_;
  std::optional<Status> closed_;
  ExpiredTags expired_;
  Pool<ControlFrame> control_frames_;
  Pool<Grant> grants_;
  Pool<Orphan> orphans_;
  UnexpectedPool unexpected_;
  std::vector<std::byte> sink_;  // what is dropped is read into this
  uint64_t control_sent_ = 0;

  std::optional<PeerWatch> watch_;
  host::GuardedFd watch_timer_;
  bool look_is_due_ = false;
  std::vector<int> host_of_;
  std::vector<std::atomic<int64_t>*> boards_;
  std::vector<bool> watched_, heard_;  // by peer, by host
  int64_t looked_ns_ = 0;
};

}  // namespace rueda::transport

// TagTransport: the Transport over Connections. Frames, matching, flow control: the same for shm,
// tcp, inproc and their mixture.
//
// Small messages (<= kEagerBytes, between hosts kFarEagerBytes) are sent at once and kept by the
// receiver until a recv asks for them. Larger ones wait for a grant: posting a recv tells the
// sender that a buffer is there, so bodies always go straight to their place and a connection never
// stalls behind a message that nobody wants yet:
//
//      receiver: recv(tag) ---- kGrant(tag, size) ---->  sender: send(tag) found or waits for the
//      grant receiver: buffer    <--- kData(tag, size) body -  sender
//
// Control frames and grants overtake bodies that have not begun.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/host/doorbell.h"
#include "collectives/host/event_loop.h"
#include "collectives/transport/connection.h"
#include "collectives/transport/frame.h"
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

  // How long abort tries to hand its verdict to peers whose connections are full. Without it they
  // would see only that this rank closed its connections, and take it for the culprit.
  static constexpr std::chrono::milliseconds kAbortLinger{200};

  struct Peer {
    std::unique_ptr<Connection> connection;  // null for this rank itself
    std::string name;                        // "rank 3 (pid 4711 on node2)": for errors
  };

  // loop and doorbell are borrowed and must outlive the tag_transport; peers has one entry per
  // rank.
  TagTransport(Rank rank, uint64_t epoch, std::vector<Peer> peers, host::EventLoop* loop,
               host::Doorbell* doorbell);
  ~TagTransport() override;

  // Signs of life of hosts, shared by the ranks of this one (Arena::heard, this rank's first).
  // host_of: by rank. Without it every peer is a host of its own. Before watch_peers; borrowed.
  void share_signs_of_life(std::vector<int> host_of, std::vector<std::atomic<int64_t>*> boards);

  Rank rank() const override { return rank_; }
  Rank size() const override { return static_cast<Rank>(peers_.size()); }
  TransferPtr send(Rank peer, Tag tag, ByteView bytes, uint16_t meta) override;
  TransferPtr recv(Rank peer, Tag tag, ByteSpan bytes, uint16_t meta) override;
  void send_control(Rank peer, std::string message) override;
  void set_events(TransportEvents events) override { events_ = std::move(events); }
  Status watch_peers(std::chrono::nanoseconds dead_after) override;
  bool progress() override;
  void sleep(std::chrono::nanoseconds timeout) override;
  void wake_up() override;
  void say_goodbye() override;
  bool flushed() const override;
  void abort(const Status& verdict, bool peers_know = false) override;
  void close(const Status& status) override;
  uint64_t bytes_sent(std::string_view kind) const override;
  uint64_t control_messages_sent() const override { return control_sent_; }

 private:
  struct Outgoing {
    FrameHeader header;
    ByteView body;
    std::string owned;     // control and abort bodies
    size_t sent = 0;       // of header and body together
    TransferPtr transfer;  // data only
  };
  struct PendingSend {
    ByteView body;
    uint16_t meta;
    TransferPtr transfer;
    bool eager;
  };
  struct PendingRecv {
    ByteSpan into;
    uint16_t meta;
    TransferPtr transfer;
  };
  struct Unexpected {
    std::vector<std::byte> body;
    uint16_t meta;
  };
  struct Grant {
    uint64_t bytes;
    uint16_t meta;
  };
  // Everything about one peer.
  struct PeerState {
    std::unique_ptr<Connection> connection;
    std::string name;
    std::deque<Outgoing> urgent;  // grants and control
    std::deque<Outgoing> bodies;
    std::optional<Outgoing> current;
    std::map<Tag, std::deque<PendingSend>> waiting_sends;  // for a grant
    std::map<Tag, std::deque<Grant>> grants;               // for a send
    std::map<Tag, std::deque<PendingRecv>> recvs;
    std::map<Tag, std::deque<Unexpected>> unexpected;
    size_t unexpected_bytes = 0;
    // Frames between hosts that have begun to leave, and whose header has arrived.
    uint32_t frames_out = 0;
    uint32_t frames_in = 0;
    // The frame being read.
    FrameHeader header;
    size_t header_read = 0;
    uint64_t body_read = 0;
    uint32_t body_sum = 0;
    std::optional<PendingRecv> target;
    Tag partial_tag = 0;                 // of `partial`
    uint64_t partial_bytes = 0;          // of `partial`, arrived
    std::optional<PendingRecv> partial;  // a message of which pieces are still to come
    std::vector<std::byte> body;         // where no recv is posted: control, abort, eager, dropped
    bool drop = false;
    bool goodbye_sent = false;
    bool cut_short = false;     // a frame was left half sent: nothing can follow
    std::optional<Status> end;  // set once the peer has left or is lost
  };

  static bool is_eager(const PeerState& peer_state, Tag tag, size_t bytes) {
    const size_t most = peer_state.connection != nullptr && peer_state.connection->crosses_hosts()
                            ? kFarEagerBytes
                            : kEagerBytes;
    return bytes <= most && (tag & kRendezvousTag) == 0;
  }
  FrameHeader header_of(FrameType type, Tag tag, uint64_t bytes, uint16_t meta) const;
  // The status with which a new transfer with this peer ends at once, if it does.
  std::optional<Status> refusal(Rank peer) const;
  void match_self(PeerState& peer_state, Tag tag);
  void release_sends(PeerState& peer_state, Tag tag);
  void queue_data(PeerState& peer_state, Tag tag, const PendingSend& send);

  // tag_transport_watch.cc
  void on_ready(bool readable, bool writable) override;  // the watch's timer
  bool look_at_peers();
  std::vector<bool> hosts_heard(std::chrono::steady_clock::time_point now);

  // tag_transport_io.cc
  bool write_some(Rank peer);
  bool write_round(Rank peer);
  static Outgoing next_piece(PeerState& peer_state);
  Status begin_data(PeerState& peer_state);
  Status finish_data(PeerState& peer_state);
  bool read_some(Rank peer);
  Status begin_body(PeerState& peer_state);
  Status finish_body(Rank peer);
  void end_peer(Rank peer, const Status& status);
  static void drop_current(PeerState& peer_state);
  void fail_transfers(PeerState& peer_state, const Status& status);
  void fail_transfers_after_frame(PeerState& peer_state, const Status& status);
  // A verdict can be sent: the peer is there, or only what it sends is damaged.
  static bool can_be_told(const PeerState& peer_state) {
    return !peer_state.end || (peer_state.end->code() == Code::kDataLoss && !peer_state.cut_short);
  }
  static void finish(const TransferPtr& transfer, Status status);

  Rank rank_;
  uint64_t epoch_;
  std::vector<PeerState> peers_;
  host::EventLoop* loop_;
  host::Doorbell* doorbell_;
  TransportEvents events_;
  std::optional<Status> closed_;
  std::optional<PeerWatch> watch_;
  host::GuardedFd watch_timer_;
  bool look_is_due_ = false;
  std::vector<int> host_of_;
  std::vector<std::atomic<int64_t>*> boards_;
  int64_t looked_ns_ = 0;
  uint64_t control_sent_ = 0;
  std::map<std::string, uint64_t, std::less<>> bytes_sent_;
};

}  // namespace rueda::transport

// StripedConnection: one ordered stream of bytes over several connections to the same peer, for
// networks in which one connection does not fill the connection (a limit for each flow; a long way,
// on which a window is less than what is under way; several cables between which a switch chooses
// by flow).
//
// Byte n of the stream travels on connection (n / stripe) mod count, on both sides alike: no
// header, and frames stay in order with their checksums. Only the connection whose turn it is gets
// read and waited for, what comes early waits in the sockets' buffers; so the stream is as fast as
// `count` of the slowest, once messages are longer than a few stripes.
//
// Threads, failure, end: as Connection. The end or the loss of a connection is met when it is its
// turn; a peer's death ends all.
#pragma once

#include <memory>
#include <vector>

#include "collectives/transport/connection.h"
#include "collectives/transport/tcp_connection.h"

namespace rueda::transport {

class StripedConnection final : public Connection {
 public:
  // Short enough that four connections carry parts of a slice of 512 KiB, long enough that a system
  // call moves many packets.
  static constexpr size_t kStripeBytes = 128 << 10;

  // At least one; in the same order on both sides.
  explicit StripedConnection(std::vector<std::unique_ptr<TcpConnection>> streams);

  const char* kind() const override { return "tcp"; }
  bool crosses_hosts() const override { return true; }
  Result<size_t> write(std::span<const ByteView> pieces) override;
  Result<size_t> read(ByteSpan into) override;
  void set_blocked(bool blocked) override;
  void flush() override {}
  void finish() override;
  bool has_arrived() const override;
  void unwatch() override;

 private:
  // Where the next byte of a direction belongs.
  struct Place {
    size_t stream = 0;
    size_t left = kStripeBytes;  // of its stripe
  };
  // True if the turn has gone to the next stream.
  bool pass(Place* place, size_t bytes) const;

  std::vector<std::unique_ptr<TcpConnection>> streams_;
  Place out_;
  Place in_;
};

}  // namespace rueda::transport

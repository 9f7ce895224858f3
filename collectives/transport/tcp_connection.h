// TcpConnection: a Connection over a connected, authenticated, non-blocking TCP socket (IPv4 or
// IPv6).
#pragma once

#include <memory>
#include <vector>

#include "collectives/host/event_loop.h"
#include "collectives/host/fork_guard.h"
#include "collectives/transport/connection.h"

namespace rueda::transport {

class TcpConnection final : public Connection, private host::FdHandler {
 public:
  // Takes the socket; sets it non-blocking and without delay. `loop` must outlive the connection.
  // rate_limit: bytes per second that the kernel lets out at most; 0: no limit. An error where the
  // loop cannot watch the socket: what arrives there would never be read.
  static Result<std::unique_ptr<TcpConnection>> create(UniqueFd socket, host::EventLoop* loop,
                                                       int64_t rate_limit = 0);
  ~TcpConnection() override;

  const char* kind() const override { return "tcp"; }
  bool crosses_hosts() const override { return true; }
  Result<size_t> write(std::span<const ByteView> pieces) override;
  Result<size_t> read(ByteSpan into) override;
  void set_blocked(bool blocked) override;
  void flush() override {}
  void finish() override;
  bool has_arrived() const override;
  void unwatch() override;
  // Whether arriving bytes wake the sleeper; at first they do.
  void set_reading(bool reading);

 private:
  TcpConnection(UniqueFd socket, host::EventLoop* loop);
  void on_ready(bool readable, bool writable) override;
  Result<size_t> receive(ByteSpan into);

  host::GuardedFd socket_;
  host::EventLoop* loop_;
  bool watched_ = false;
  bool readable_ = true;  // until a read says otherwise; epoll sets it again
  bool blocked_ = false;
  bool reading_ = true;
  // Headers are small: they are read through a buffer, large bodies go straight to their place.
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace rueda::transport

// RingConnection: a Connection over two ByteRings in shared memory, one for each direction. Serves
// shm and inproc.
//
// Death of the peer shows as the end of `life`, a connected unix socket on which nothing is ever
// sent: the kernel closes it when the process is gone. What the peer wrote into the ring before
// stays readable.
#pragma once

#include <memory>

#include "collectives/host/byte_ring.h"
#include "collectives/host/doorbell.h"
#include "collectives/host/event_loop.h"
#include "collectives/host/fork_guard.h"
#include "collectives/transport/connection.h"

namespace rueda::transport {

class RingConnection final : public Connection, private host::FdHandler {
 public:
  // keep_alive owns the memory of the rings and of the ringer's word (an arena, or heap); shared
  // because both directions' owners outlive each other in either order. `loop` must outlive the
  // connection; `life` may be empty (a connection to oneself).
  // An error where the loop cannot watch `life`: the peer's death would not be seen.
  static Result<std::unique_ptr<RingConnection>> create(const char* kind, host::ByteRing outgoing,
                                                        host::ByteRing incoming, host::Ringer peer,
                                                        UniqueFd life, host::EventLoop* loop,
                                                        std::shared_ptr<void> keep_alive);
  ~RingConnection() override;

  const char* kind() const override { return kind_; }
  Result<size_t> write(std::span<const ByteView> pieces) override;
  Result<size_t> read(ByteSpan into) override;
  void set_blocked(bool) override {}  // write() says itself that it waits for room
  void flush() override;
  void finish() override;
  void unwatch() override;

 private:
  RingConnection(const char* kind, host::ByteRing outgoing, host::ByteRing incoming,
                 host::Ringer peer, UniqueFd life, host::EventLoop* loop,
                 std::shared_ptr<void> keep_alive);
  void on_ready(bool readable, bool writable) override;
  size_t write_now(std::span<const ByteView> pieces, bool* sane);

  const char* kind_;
  host::ByteRing outgoing_;
  host::ByteRing incoming_;
  host::Ringer peer_;
  host::GuardedFd life_;
  host::EventLoop* loop_;
  std::shared_ptr<void> keep_alive_;
  bool wrote_ = false, read_ = false;  // since the last flush
  bool wants_room_ = false;
  bool watched_ = false;
  bool ended_ = false;
};

}  // namespace rueda::transport

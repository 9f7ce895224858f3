// MpiConnection: a Connection whose bytes go over MPI. A socket to the same peer carries one byte
// for each chunk that was sent, so that nobody polls MPI for nothing, and its end is the peer's
// end, which MPI itself would tell late or never.
//
//   on the socket:  'c' one more chunk was handed to MPI    'g' goodbye: nothing more will come
#pragma once

#include <memory>

#include "collectives/host/event_loop.h"
#include "collectives/host/fork_guard.h"
#include "collectives/transport/connection.h"
#include "collectives/transport/mpi/engine.h"

namespace rueda::mpi {

class MpiConnection final : public transport::Connection, private host::FdHandler {
 public:
  // How long what a peer announced may take once its socket has ended: after a goodbye it is on its
  // way, after a death it may never come.
  static constexpr std::chrono::milliseconds kAfterGoodbye{10'000}, kAfterDeath{200};

  // socket: connected to the peer, nothing else is on it. `news` wakes this connection's thread.
  // An error where the loop cannot watch the socket: no chunk would ever be looked for.
  static Result<std::unique_ptr<MpiConnection>> create(std::shared_ptr<Engine> engine, int peer,
                                                       int tag, host::Ringer news, UniqueFd socket,
                                                       host::EventLoop* loop);
  ~MpiConnection() override;

  const char* kind() const override { return "mpi"; }
  bool crosses_hosts() const override { return true; }
  Result<size_t> write(std::span<const ByteView> pieces) override;
  Result<size_t> read(ByteSpan into) override;
  void set_blocked(bool blocked) override;
  void flush() override;
  void finish() override;
  void unwatch() override;

 private:
  MpiConnection(std::shared_ptr<Engine> engine, int peer, int tag, host::Ringer news,
                UniqueFd socket, host::EventLoop* loop);
  void on_ready(bool readable, bool writable) override;
  void tell();
  void end(std::chrono::milliseconds patience, const char* why);

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Stream> stream_;
  host::GuardedFd socket_;
  host::EventLoop* loop_;
  size_t untold_ = 0;  // chunks of which the peer does not know yet
  bool goodbye_ = false, ended_ = false, watched_ = false;
};

}  // namespace rueda::mpi

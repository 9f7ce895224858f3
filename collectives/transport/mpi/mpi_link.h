// MpiLink: a Link whose bytes go over MPI. A socket to the same peer carries one byte for each
// chunk that was sent, so that nobody polls MPI for nothing, and its end is the peer's end, which
// MPI itself would tell late or never.
//
//   on the socket:  'c' one more chunk was handed to MPI    'g' goodbye: nothing more will come
#pragma once

#include <memory>

#include "collectives/base/fork_guard.h"
#include "collectives/transport/event_loop.h"
#include "collectives/transport/link.h"
#include "collectives/transport/mpi/engine.h"

namespace rueda::mpi {

class MpiLink final : public transport::Link, private transport::FdHandler {
 public:
  // How long what a peer announced may take once its socket has ended: after a goodbye it is on its
  // way, after a death it may never come.
  static constexpr std::chrono::milliseconds kAfterGoodbye{10'000}, kAfterDeath{200};

  // socket: connected to the peer, nothing else is on it. `news` wakes this link's thread.
  MpiLink(std::shared_ptr<Engine> engine, int peer, int tag, transport::Ringer news,
          UniqueFd socket, transport::EventLoop* loop);
  ~MpiLink() override;

  const char* kind() const override { return "mpi"; }
  bool crosses_hosts() const override { return true; }
  Result<size_t> write(std::span<const ByteView> pieces) override;
  Result<size_t> read(ByteSpan into) override;
  void set_blocked(bool blocked) override;
  void flush() override;
  void finish() override;
  void unwatch() override;

 private:
  void on_ready(bool readable, bool writable) override;
  void tell();
  void end(std::chrono::milliseconds patience, const char* why);

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Stream> stream_;
  GuardedFd socket_;
  transport::EventLoop* loop_;
  size_t untold_ = 0;  // chunks of which the peer does not know yet
  bool goodbye_ = false, ended_ = false, watched_ = false;
};

}  // namespace rueda::mpi

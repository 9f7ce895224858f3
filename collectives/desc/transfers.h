// Transfers: a set of sends and receives to wait for together, used again and again.
//
//   prepared            moves.reserve(2);
//   each call           moves.recv(...);  moves.send(...);
//   in a script         last = co_await moves.finished();
//   in a state machine  if (!moves.ready()) return;  status = moves.take();
//
// Ownership: owns its transfers, borrows the transport and the memory that they move.
// Memory:    what is reserved is allocated once; a set that needs more grows, and keeps that too.
// Failure:   the first one that is seen ends the wait; take() cancels what is still under way.
// End:       transfers that are under way are cancelled. So a set is declared behind memory of its
//            owner's that it moves, and ends before it.
// Threads:   the transport's.
#pragma once

#include <deque>

#include "collectives/base/status.h"
#include "collectives/desc/script.h"
#include "collectives/transport/transport.h"

namespace rueda {

class Transfers {
 public:
  explicit Transfers(size_t capacity = 0) { reserve(capacity); }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Room for so many at a time.
  void reserve(size_t capacity) {
    while (transfers_.size() < capacity) transfers_.emplace_back();
  }

  // All between two takes are of one transport.
  void send(transport::Transport* transport, Rank peer, transport::Tag tag, ByteView bytes) {
    transport->send(next(transport), peer, tag, bytes);
  }
  void recv(transport::Transport* transport, Rank peer, transport::Tag tag, ByteSpan bytes) {
    transport->recv(next(transport), peer, tag, bytes);
  }

  // All are done, or one has failed.
  bool ready() {
    while (seen_ < used_ && transfers_[seen_].done()) {
      if (!transfers_[seen_].status().ok()) return true;
      ++seen_;
    }
    return seen_ == used_;
  }
  // Once ready(): the first failure, if any. The set is empty then.
  Status take() {
    const Status status = seen_ < used_ ? transfers_[seen_].status() : Status();
    for (; seen_ < used_; ++seen_) transport_->cancel(&transfers_[seen_]);
    used_ = seen_ = 0;
    return status;
  }

  class Finished : public Waiter {
   public:
    explicit Finished(Transfers* set) : set_(set) {}
    bool ready() override { return set_->ready(); }
    Status await_resume() { return set_->take(); }

   private:
    Transfers* set_;
  };
  // co_await gives the first failure.
  Finished finished() { return Finished(this); }

 private:
  transport::Transfer* next(transport::Transport* transport) {
    transport_ = transport;
    if (used_ == transfers_.size()) transfers_.emplace_back();
    return &transfers_[used_++];
  }

  std::deque<transport::Transfer> transfers_;  // whose addresses stay
  size_t used_ = 0;
  size_t seen_ = 0;  // those before it are done, and well
  transport::Transport* transport_ = nullptr;
};

}  // namespace rueda

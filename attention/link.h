// Link: the messages of one call of attention to the other ranks, and the memory they use.
//
// All ranks of a process set make their calls in the same order; the n-th calls meet. Messages of
// ranks whose calls differ fail on both sides (kFailedPrecondition). Who runs the call tells that
// to all ranks, also those that have no messages with the two, and that it was refused on this rank
// (tell_mismatch()); and whatever else ends it on one rank alone (is_known()).
// Ownership: memory that is taken here lives until no message uses it any more, also when the call
//            fails early.
// Threads:   one at a time; abort() from any.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "runtime/engine/runtime.h"

namespace rueda::attention {

class Link {
 public:
  struct Place {
    engine::Runtime* runtime = nullptr;  // null: one rank alone
    uint32_t process_set = 0;
    std::vector<Rank> members;  // the set's ranks in the job
    uint32_t call = 0;
    uint16_t agreed = 0;
  };
  Link(Place place, std::shared_ptr<std::atomic<bool>> aborted)
      : place_(std::move(place)), aborted_(std::move(aborted)) {}

  // From here on messages are memory of this GPU: they come behind what the stream has been given
  // when they begin, and what it is given after wait() comes behind them.
  void on_device(int device, cuda::StreamHandle stream) {
    device_ = device;
    stream_ = stream;
  }

  using Message = engine::RequestPtr;
  // Memory is borrowed until the message has ended; use take().
  // Messages and answers have an order each: the n-th that is sent meets the n-th that is received.
  Result<Message> send(Rank peer, const std::byte* data, int64_t bytes, bool answer = false);
  Result<Message> recv(Rank peer, std::byte* data, int64_t bytes, bool answer = false);
  // How the message ended (of a GPU: was given to it), or another that has failed meanwhile: then
  // this one may never end. Null is a message of nothing. Warns when it has lasted as long as a
  // stalled tensor, and fails when such a one does (kDeadlineExceeded).
  Status wait(const Message& message);
  Status check_aborted() const;
  // The peers know of a failure by now: a message has told it, or the call was aborted. Otherwise
  // it is this rank's alone, and they would wait.
  bool is_known() const { return known_ || aborted_->load(std::memory_order_relaxed); }
  // The call's arguments are wrong on this rank.
  void refuse();
  // Where a message has brought that a rank's call is another, or this rank's was refused: tells
  // all ranks which rank that is. Waits for none of them.
  void tell_mismatch();
  // An error of a message to or from `peer`, by where it happened and the peer's rank in the job;
  // of a mismatch, the rank whose call is another than this one's, or was refused there.
  Status named(const Status& status, const std::string& where, const char* doing, Rank peer) const;

  // 64-byte aligned, not zeroed, until it is given back or the link ends.
  std::byte* take(int64_t bytes);
  // Of no message that is under way.
  void give(const std::byte* memory);
  int64_t taken_at_most() const { return most_; }
  // True when no message is under way, so that nobody uses the memory.
  bool idle() const;
  // The call has failed: of messages that are under way, who never meets is no stall.
  void abandon() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Block {
    std::unique_ptr<std::byte[], Free> memory;
    int64_t bytes = 0;
  };
  void learn(const Message& failed);
  Status failure_of_any();
  Status look_for_stall(const engine::Request& message, double seconds);
  Result<Message> move(bool send, Rank peer, const std::byte* in, std::byte* out, int64_t bytes,
                       bool answer);

  Place place_;
  std::shared_ptr<std::atomic<bool>> aborted_;
  std::vector<Block> memory_;
  int64_t taken_ = 0, most_ = 0;
  std::vector<Message> messages_;
  int device_ = -1;
  cuda::StreamHandle stream_ = nullptr;
  bool known_ = false;
  double next_warning_ = 0;  // seconds
  Rank other_ = -1;          // in the job: whose call is another, or was refused
};

}  // namespace rueda::attention

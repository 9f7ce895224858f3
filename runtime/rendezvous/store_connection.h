// StoreConnection: the server's end of one client's stream: frames in, frames out, in bounds.
//
// Memory it takes, whatever the client does: one incomplete frame in, kOutputRoom plus one frame
// out, kMaxRequests unanswered requests of at most a key each, one standing. A client that has more
// unanswered requests, or does not read its answers, is not read from until it does: it only stops
// itself. Threads: the server's, under its lock. Nothing here blocks.
#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "proto/messages.h"
#include "runtime/rendezvous/key_table.h"
#include "runtime/rendezvous/poll_until.h"

namespace rueda::rendezvous {

class StoreConnection {
 public:
  static constexpr size_t kMaxRequests = 1024;  // unanswered
  static constexpr size_t kOutputRoom = size_t{256} << 10;
  static constexpr int kReadsPerTurn = 64;  // then it is another client's turn

  // Its wish to enter an epoch. Once that is answered it stays until the client goes on with
  // something else: who was interrupted may ask again, and is told the same.
  struct Entering {
    uint64_t id;
    wire::Standing standing;
    KeyTable::Value answer;  // an encoded NewEpoch; null: not yet
  };
  // A get that waits for its key.
  struct Waiting {
    uint64_t id;
    std::string key;
    std::chrono::nanoseconds timeout;
    Deadline deadline;
  };

  StoreConnection(UniqueFd fd, uint64_t member) : fd_(std::move(fd)), member_(member) {}

  int fd() const { return fd_.get(); }
  uint64_t member() const { return member_; }

  // Reads what has arrived and appends whole requests; stops for the reasons above. An error means
  // that the connection must be closed: kCancelled when the client closed it, kDataLoss when what
  // it sent is no request.
  Status read_requests(std::deque<wire::StoreRequest>* requests);
  // Queues an answer; the value is copied only when its turn comes.
  void answer(uint64_t id, const Status& status, KeyTable::Value value = nullptr,
              uint64_t number = 0);
  // Sends as much as the client takes. An error means that the connection must be closed.
  Status send_answers();

  bool wants_to_read() const { return answers_.size() + waiting.size() < kMaxRequests; }
  bool wants_to_write() const { return !output_.empty() || !answers_.empty(); }
  size_t buffered_bytes() const { return input_.capacity() + output_.capacity(); }

  std::list<Waiting> waiting;
  std::optional<Entering> entering;
  std::map<uint64_t, size_t> stored_bytes;  // by this client's sets, of each epoch
  uint32_t watched_events = 0;              // what the server's epoll set has for it

 private:
  struct Answer {
    wire::StoreReply reply;
    KeyTable::Value value;
  };

  const UniqueFd fd_;
  const uint64_t member_;
  std::string input_;
  std::string output_;
  size_t output_sent_ = 0;
  std::deque<Answer> answers_;
};

}  // namespace rueda::rendezvous

// SubmissionQueue: the door between the user's threads and the coordinator.
//
// Threads: submit, close from any; drain and release from the coordinator. The lock is held for
// moves of vectors only.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/transport/doorbell.h"
#include "proto/messages.h"
#include "runtime/work.h"

namespace rueda::runtime {

// One operation with its memory, checked and ready to be agreed on.
struct Submission {
  wire::Request request;  // what the ranks must agree on; name is "<kind>.<name>"
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  // null: the work owns the result
  Rank peer = 0;             // send, recv
  uint32_t tag = 0;
  std::shared_ptr<Work> work;
};

class SubmissionQueue {
 public:
  explicit SubmissionQueue(transport::Ringer ringer) : ringer_(ringer) {}

  // All or none. kAlreadyExists: a name is in flight on this rank. After close(): its status.
  Status submit(std::vector<Submission> submissions);
  // What was submitted since the last call. Cheap when there is nothing.
  std::vector<Submission> drain();
  // True once after each wake().
  bool take_wake() { return woken_.exchange(false, std::memory_order_acq_rel); }
  // The name may be used again. Call before the work completes.
  void release(const std::string& name);
  // From now on every submit fails with this; what is queued can still be drained.
  void close(const Status& status);
  // Wakes the coordinator.
  void wake();
  // The doorbell is about to go; no wake after this.
  void detach();

 private:
  std::mutex mutex_;
  transport::Ringer ringer_;
  bool attached_ = true;
  std::atomic<bool> woken_{false};
  std::atomic<bool> filled_{false};
  std::vector<Submission> incoming_;
  std::unordered_set<std::string> in_flight_;
  std::optional<Status> closed_;
};

}  // namespace rueda::runtime

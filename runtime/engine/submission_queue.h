// SubmissionQueue: the door between the user's threads and the coordinator.
//
// Single operations come through a lock that is held for moves of vectors only; prepared ones
// through a list without lock (a stack that its taker turns around). Names belong to a process set
// each.
// Threads: submit, push, close from any; drain, take and release from who holds the progress lock.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/host/doorbell.h"
#include "runtime/engine/submission.h"

namespace rueda::engine {

class SubmissionQueue {
 public:
  explicit SubmissionQueue(host::Ringer ringer) : ringer_(ringer) {}

  // All or none. kAlreadyExists: a name is in flight on this rank. After close(): its status.
  // A numbered one whose name is in flight waits here until that is released.
  // ring: wakes the coordinator; else the caller does.
  Status submit(std::vector<Submission> submissions, bool ring = true);
  // What was submitted since the last call. Cheap when there is nothing.
  std::vector<Submission> drain();
  // True once after each wake().
  bool take_wake() {
    return woken_.load(std::memory_order_relaxed) &&
           woken_.exchange(false, std::memory_order_acq_rel);
  }

  // A claimed operation. Allocates nothing; wakes nobody.
  void push(Prepared* prepared);
  // Those pushed since the last call, first come first, linked by next(). Null when there are none.
  Prepared* take();
  bool empty() const {
    return prepared_.load(std::memory_order_seq_cst) == nullptr &&
           !filled_.load(std::memory_order_seq_cst);
  }

  // The name's entry in its set, kept as long as somebody holds it.
  NamePtr hold(const Submission& submission);
  // The name may be used again. Call before the work completes.
  void release(Submission* submission);
  // Who holds a name that is not in flight gives it up.
  void forget(Submission* submission);
  // Those of a set that still wait for their name, for their error.
  std::vector<Submission> take_waiting(ProcessSet* set);
  // Does anything of a set wait for its name?
  bool has_waiting(const ProcessSet& set) const;
  // From now on every submit fails with this; what is queued can still be drained.
  void close(const Status& status);
  // Ok, or what close() said.
  Status closed() const;
  // Wakes the coordinator; take_wake() tells it why.
  void wake();
  void ring();
  // The doorbell is about to go; no wake after this.
  void detach();

 private:
  // With the lock. The entry of a name, made if need be; and its end if nobody holds it.
  static NamePtr& entry_of(const Submission& submission);
  static void drop_unused(const Submission& submission);

  mutable std::mutex mutex_;
  host::Ringer ringer_;
  bool attached_ = true;
  std::atomic<bool> woken_{false};
  std::atomic<bool> filled_{false};
  std::atomic<Prepared*> prepared_{nullptr};
  std::vector<Submission> incoming_;
  std::optional<Status> closed_;
};

}  // namespace rueda::engine

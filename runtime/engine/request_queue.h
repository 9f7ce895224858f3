// RequestQueue: the door between the user's threads and the coordinator.
//
// Claimed requests come through a list without lock (a stack that its taker turns around). Names
// belong to a process set each; a lock guards their table, which persistent requests need once.
//
//   user: claim --> push           unnamed and its number is in flight: waits here, until release()
//   coordinator:          take --> ... --> release
//
// Threads: claims, hold, push, close from any; take and release from who holds the progress lock.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/host/doorbell.h"
#include "runtime/engine/request.h"

namespace rueda::engine {

class RequestQueue {
 public:
  explicit RequestQueue(host::Ringer ringer) : ringer_(ringer) {}

  // For requests that are started once, all of a call, in two halves: between them those without a
  // name get their number, which counts only when no name of the call is refused.
  // kAlreadyExists: a name is in flight on this rank. After close(): its status. None has been
  // claimed then.
  Status claim_named(std::span<const RequestPtr> requests);
  // The rest. Gives those to be pushed, in their order: a numbered one whose name is in flight
  // waits here. Fails as the first half does, and gives back what that has claimed.
  Result<std::vector<Request*>> claim_numbered(std::span<const RequestPtr> requests);
  // Claimed ones, one behind the other. Allocates nothing; wakes nobody.
  void push(Request* request) { push(std::span(&request, 1)); }
  void push(std::span<Request* const> requests);
  // Those pushed since the last call, first come first, linked by next(). Null when there are none.
  Request* take();
  bool empty() const { return pushed_.load(std::memory_order_seq_cst) == nullptr; }

  // The name's entry in its set, kept as long as somebody holds it.
  NamePtr hold(const Request& request);
  // The name may be used again. Call before the request ends.
  void release(Request* request);
  // Who holds a name that is not in flight gives it up.
  void forget(Request* request);
  // Those of a set that still wait for their name, for their error.
  std::vector<RequestPtr> take_waiting(ProcessSet* set);
  // Does anything of a set wait for its name?
  bool has_waiting(const ProcessSet& set) const;
  // From now on every claim fails with this; what is queued can still be taken.
  void close(const Status& status);
  // Ok, or what close() said.
  Status closed() const;
  // Wakes the coordinator; take_wake() tells it why.
  void wake();
  // True once after each wake().
  bool take_wake() {
    return woken_.load(std::memory_order_relaxed) &&
           woken_.exchange(false, std::memory_order_acq_rel);
  }
  void ring();
  // The doorbell is about to go; no wake after this.
  void detach();

 private:
  // With the lock. The entry of a name, made if need be; those claimed end so; and the entry's end
  // if nobody holds it.
  static NamePtr& entry_of(const Request& request);
  static bool must_wait(const Request& request);
  static void wait_for_name(const RequestPtr& request);
  static void give_back(std::span<const RequestPtr> requests, const Status& status);
  static void drop_unused(const Request& request);

  mutable std::mutex mutex_;
  host::Ringer ringer_;
  bool attached_ = true;
  std::atomic<bool> woken_{false};
  std::atomic<Request*> pushed_{nullptr};
  std::optional<Status> closed_;
};

}  // namespace rueda::engine

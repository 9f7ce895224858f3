// Completion: something under way that ends once per start, and all the ways to hear of its end.
//
//   wait    blocks, with a deadline         on_end    calls back, from the thread that ends it
//   done    looks, never blocks             event_fd  becomes readable, for poll and epoll
//   wait_any  blocks until one of several has ended
//
// Threads: any may wait, look and ask to be told; whoever runs the operation completes it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "runtime/engine/blocked_clock.h"

namespace rueda::engine {

class Completion;
class EndWatch;

// Who makes operations end, as a blocked thread sees it.
class Helper {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;
  virtual ~Helper() = default;
  // A thread waits for an operation that may be held back for its batch.
  virtual void wake() = 0;
  // The calling thread is blocked on it: it may do the coordinator's work itself for a while.
  // Returns when it has ended, the deadline has passed, or sleeping is better.
  virtual void help(Completion* awaited, const Deadline& deadline) = 0;
  // Where the thread that ends operations must not be held up: takes a callback that is due, and
  // runs it elsewhere. False: the caller runs it.
  virtual bool take_callback(std::function<void()>* /*callback*/) { return false; }
  // Threads that sleep until an operation ends say so here; those that wait, asleep or helping,
  // there.
  BlockedClock blocked, waiting;
};

class Completion {
 public:
  // title: "allreduce 'fc1.weight'". helper may be null: the waiting thread just sleeps.
  explicit Completion(std::string title, std::shared_ptr<Helper> helper = nullptr)
      : title_(std::move(title)), helper_(std::move(helper)) {}
  virtual ~Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  const std::string& title() const { return title_; }
  // Before anybody else has it.
  void set_title(std::string title) { title_ = std::move(title); }
  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  // Negative timeout: without limit. kDeadlineExceeded: the wait ended, the operation goes on.
  // kAborted: a signal interrupted the wait. kFailedPrecondition: called inside a callback of
  // on_end, where waiting would be for ever. Otherwise how the operation ended.
  Status wait(std::chrono::nanoseconds timeout);
  // How it ended; for who has helped already. Signals do not end this wait.
  const Status& sleep();
  // Valid once done().
  const Status& status() const { return status_; }
  // How often it was begun anew: which start's end one looks at.
  uint64_t starts() const { return starts_.load(std::memory_order_acquire); }

  // Waits until one of these (null ones are passed over) has ended that `take` takes, and gives its
  // place; nothing where none is left that has not ended. take(place) is asked about what has
  // ended, again and again until it says true. Errors as of wait().
  static Result<std::optional<size_t>> wait_any(std::span<Completion* const> all,
                                                std::chrono::nanoseconds timeout,
                                                const std::function<bool(size_t)>& take);

  // Called once, when what is under way ends; at once where nothing is. By the thread that ends it,
  // or by one for callbacks (Helper::take_callback); others may wait for either: short, never
  // waiting.
  void on_end(std::function<void()> callback);
  // Readable (an eventfd) while nothing is under way; each restart takes that back. The
  // completion's own: not to be read or closed. An error: no descriptor is left.
  Result<int> event_fd();
  // Runs one, in this thread.
  static void call_back(const std::function<void()>& callback);
  // The calling thread is inside a callback of on_end.
  static bool in_callback();
  // kFailedPrecondition there.
  Status check_may_wait() const;

  // ---- who runs it
  // Begins anew what has ended or has never begun. Nobody else may use it meanwhile.
  void restart();
  void complete(Status status);
  // Ends well; allocates nothing.
  void complete();
  // What is missing, for the text of a passed deadline.
  void set_note(std::string note);
  // The root may keep this tensor waiting for its batch. True if a thread waits already; later
  // waits wake.
  bool mark_may_batch();
  bool awaited() const { return awaited_.load(std::memory_order_seq_cst); }
  // A thread waits, and the agreement should know if that holds something up.
  void set_awaited();

 private:
  enum State : uint32_t { kPending = 0, kAwaited = 1, kDone = 2 };
  struct Callback {
    uint64_t start;
    std::function<void()> call;
  };
  Status sleep_until(const Helper::Deadline& deadline, std::chrono::nanoseconds timeout);
  void tell(uint64_t start);
  // What is missing, for who has waited so long in vain.
  std::string missing() const;
  // It is rung with each end from here on, until it is taken away.
  void add(EndWatch* watch);
  void remove(EndWatch* watch);

  std::string title_;
  std::shared_ptr<Helper> helper_;
  std::atomic<uint32_t> state_{kPending};
  std::atomic<bool> awaited_{false};
  std::atomic<bool> may_batch_{false};
  // Somebody has asked to be told. Beside state_: either who asks sees the end, or the end sees
  // this.
  std::atomic<bool> asked_{false};
  Status status_;
  mutable std::mutex mutex_;
  std::string note_;
  std::atomic<uint64_t> starts_{0};  // which of them a callback is for
  std::vector<Callback> callbacks_;
  std::vector<EndWatch*> watches_;
  UniqueFd event_fd_;
};

}  // namespace rueda::engine

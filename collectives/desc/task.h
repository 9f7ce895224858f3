// Task: one collective as a coroutine that never blocks.
//
// An algorithm is written as it stands on the whiteboard and says `co_await` where it needs a peer;
// the coordinator calls advance() again and again, which resumes the algorithm only when what it
// waits for is there.
//
//   Task pass_on(Transport& t, Rank left, Rank right, ByteSpan block) {
//     Transfers moves;
//     moves.add(t.recv(left, kTag, block));
//     RUEDA_CO_RETURN_IF_ERROR(co_await moves.finished());
//     ...
//     co_return Status();
//   }
//
// Ownership: the Task owns the coroutine's frame; destroying it ends the algorithm where it stands
// (close the transport first, so that no transfer is left over its memory). Arguments by reference
// must outlive the task. Threads:   one.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/transport/transport.h"

namespace rueda {

// What a suspended task waits for.
class Awaiting {
 public:
  virtual ~Awaiting() = default;
  virtual bool ready() = 0;
};

class [[nodiscard]] Task {
 public:
  struct promise_type {
    Status status;
    Awaiting* awaiting = nullptr;
    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_value(Status s) { status = std::move(s); }
    void unhandled_exception() {
      std::terminate();
    }  // no exception is thrown here except out of memory
  };
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Goes on as far as possible without waiting. True when something happened.
  bool advance() {
    bool moved = false;
    while (!handle_.done()) {
      Awaiting* awaiting = handle_.promise().awaiting;
      if (awaiting != nullptr && !awaiting->ready()) return moved;
      handle_.promise().awaiting = nullptr;
      moved = true;
      handle_.resume();
    }
    return moved;
  }
  bool done() const { return handle_.done(); }
  const Status& status() const { return handle_.promise().status; }

 private:
  Handle handle_;
};

// Base of things to co_await: suspends unless ready at once.
class Waiter : public Awaiting {
 public:
  bool await_ready() { return ready(); }
  void await_suspend(Task::Handle handle) { handle.promise().awaiting = this; }
};

// A set of transfers to wait for together. co_await moves.finished() gives the first failure.
class Transfers {
 public:
  void add(transport::TransferPtr transfer) { list_.push_back(std::move(transfer)); }

  class Finished : public Waiter {
   public:
    explicit Finished(Transfers* set) : set_(set) {}
    bool ready() override {
      auto& list = set_->list_;
      while (set_->next_ < list.size() && list[set_->next_]->done) {
        if (!list[set_->next_]->status.ok()) return true;
        ++set_->next_;
      }
      return set_->next_ == list.size();
    }
    Status await_resume() {
      const Status status =
          set_->next_ < set_->list_.size() ? set_->list_[set_->next_]->status : Status();
      set_->list_.clear();
      set_->next_ = 0;
      return status;
    }

   private:
    Transfers* set_;
  };
  Finished finished() { return Finished(this); }

 private:
  std::vector<transport::TransferPtr> list_;
  size_t next_ = 0;
};

}  // namespace rueda

#define RUEDA_CO_RETURN_IF_ERROR(expr)                \
  do {                                                \
    ::rueda::Status rueda_status_ = (expr);           \
    if (!rueda_status_.ok()) co_return rueda_status_; \
  } while (false)

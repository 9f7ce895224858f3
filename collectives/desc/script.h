// Script: a collective's algorithm as a coroutine that never blocks and never ends: each round of
// its loop is one call.
//
//   Script pass_on(Ring ring, std::span<const Part> tensors) {
//     Transfers moves(2);                             // prepared once
//     for (Status last;;) {
//       const Call call = co_await next_call(last);   // ends the call before, waits for the next
//       moves.recv(ring.left, call.tag, tensors[0].out, ...);
//       last = co_await moves.finished();
//     }
//   }
//
// It says `co_await` where it needs a peer; the owner calls advance() again and again, which
// resumes it only when what it waits for is there. The frame is allocated once, so a call allocates
// nothing that the algorithm does not.
//
// Ownership: ScriptedCollective owns the frame; destroying it ends the algorithm where it stands,
//            and its transfers with it. Arguments by reference must outlive it.
// Threads:   one.
#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "collectives/desc/collective.h"
#include "collectives/transport/transport.h"

namespace rueda {

// What a suspended script waits for.
class Awaiting {
 public:
  virtual ~Awaiting() = default;
  virtual bool ready() = 0;
};

// One start, as the algorithm sees it.
struct Call {
  transport::Tag tag = 0;  // fresh, the same on all ranks; the low 8 bits are the algorithm's
  CallContext context;
};

class [[nodiscard]] Script {
 public:
  struct promise_type {
    Awaiting* awaiting = nullptr;
    bool between = false;  // suspended before the next call
    Call call;
    Status status;  // of the last call
    Script get_return_object() {
      return Script(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }  // nothing is thrown but out of memory
  };
  using Handle = std::coroutine_handle<promise_type>;

  explicit Script(Handle handle) : handle_(handle) {}
  Script(Script&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Script(const Script&) = delete;
  ~Script() {
    if (handle_) handle_.destroy();
  }

  void start(Call call) {
    promise_type& promise = handle_.promise();
    promise.call = call;
    promise.between = false;
  }
  bool ended() const { return handle_.promise().between; }
  const Status& status() const { return handle_.promise().status; }
  // Goes on as far as possible without waiting. True when something happened.
  bool advance() {
    promise_type& promise = handle_.promise();
    bool moved = false;
    while (!promise.between) {
      if (promise.awaiting != nullptr && !promise.awaiting->ready()) return moved;
      promise.awaiting = nullptr;
      moved = true;
      handle_.resume();
    }
    return moved;
  }

 private:
  Handle handle_;
};

// Base of things to co_await: suspends unless ready at once.
class Waiter : public Awaiting {
 public:
  bool await_ready() { return ready(); }
  void await_suspend(Script::Handle handle) { handle.promise().awaiting = this; }
};

// The call before ends with this status; gives the next one.
struct NextCall {
  Status last;
  Script::Handle handle;
  bool await_ready() const { return false; }
  void await_suspend(Script::Handle at) {
    handle = at;
    at.promise().status = std::move(last);
    at.promise().between = true;
  }
  Call await_resume() const { return handle.promise().call; }
};
inline NextCall next_call(Status last = {}) { return {std::move(last), {}}; }

// A collective that a script carries out.
class ScriptedCollective final : public Collective {
 public:
  // Gives each start its tag.
  using NextTag = std::function<transport::Tag()>;
  // Its arguments stay where they are as long as the collective.
  using Make = std::function<Script(const CollectiveDesc& desc, std::span<const Part> tensors)>;

  ScriptedCollective(CollectiveDesc desc, NextTag next_tag, const Make& make)
      : Collective(std::move(desc)), next_tag_(std::move(next_tag)), script_(make(desc_, parts_)) {}

  void start(const CallContext& context) override {
    done_ = false;
    script_.start({next_tag_(), context});
  }
  bool advance() override {
    const bool moved = script_.advance();
    if (!script_.ended()) return moved;
    status_ = script_.status();
    done_ = true;
    return true;
  }

 private:
  NextTag next_tag_;
  Script script_;
};

}  // namespace rueda

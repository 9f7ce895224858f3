// ProgressEngine: who runs the coordinator. Its background thread, or a user's thread that has to
// wait anyway and thereby saves the way to another thread and back.
//
//   background   sleeps in epoll without the progress lock; woken by a message, a socket, a
//                deadline or ring()
//   a waiter     takes the progress lock, steps until its work has ended or waiting has become too
//                long, and wakes the background thread if something is left under way
//   a start      puts the operation into the queue; whoever holds the progress lock takes it, and
//                looks once more after giving the progress lock up
//
// Whenever the progress lock is free the background thread sleeps, or is about to, with its
// doorbell armed, and everything that came before arming has been looked at.
//
// Ownership: shared by requests and the runtime, which outlives its thread.
// Threads:   any. Whoever holds the lock computes in the default floating-point mode.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>

#include "collectives/base/float_mode.h"
#include "collectives/base/status.h"
#include "collectives/host/progress_lock.h"
#include "collectives/host/wait_policy.h"
#include "runtime/engine/callback_thread.h"
#include "runtime/engine/request_queue.h"

namespace rueda::life {
class LifeLine;
}
namespace rueda::membership {
struct Fabric;
}

namespace rueda::engine {

class Coordinator;

class ProgressEngine final : public Helper {
 public:
  // helps: waiters may drive (all ranks on one host: their news is in memory).
  ProgressEngine(std::shared_ptr<RequestQueue> queue, host::WaitPolicy policy, bool helps)
      : queue_(std::move(queue)), policy_(policy), helps_(helps) {}
  // Borrowed until loop() has returned. Before anything else is called. life: null without agents.
  void attach(Coordinator* coordinator, membership::Fabric* fabric, life::LifeLine* life);

  // The background thread: until the coordinator has ended.
  void loop();

  // Takes claimed requests, one behind the other: here if the progress lock is free, so that no
  // thread has to wake for it.
  void start(std::span<Request* const> requests);
  // Takes it and helps; returns when it has ended, the deadline has passed, or sleeping is better.
  void run(Request* request, const Deadline& deadline);
  void help(Completion* awaited, const Deadline& deadline) override;
  void wake() override { queue_->wake(); }
  // Where no waiter may drive, the background thread alone gives signs of life.
  bool take_callback(std::function<void()>* callback) override {
    return !helps_ && callbacks_.take(callback);
  }
  // Returns when all callbacks have run that are due. After loop(); not from a callback.
  void finish_callbacks() { callbacks_.finish(); }
  // A request gives its name up.
  void forget(Request* request) { queue_->forget(request); }

  // Runs fn(coordinator) with the progress lock; the coordinator is null after its end.
  template <typename Function>
  void with_progress_lock(Function fn) {
    progress_lock_.lock();
    const DefaultFloatMode mode;
    fn(coordinator_);
    leave();
  }

  // Somebody records when operations are submitted. Any thread.
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void set_recording(bool on) { recording_.store(on, std::memory_order_relaxed); }

  int64_t wakeups() const { return wakeups_.load(std::memory_order_relaxed); }

 private:
  using Time = std::chrono::steady_clock::time_point;
  bool take_progress_lock();
  void drive(Completion* awaited, const Deadline& deadline);
  void leave();
  void sleep(bool look_at_queue);
  void end();
  void refuse_all();

  host::ProgressLock progress_lock_;
  std::shared_ptr<RequestQueue> queue_;
  const host::WaitPolicy policy_;
  const bool helps_;
  // Guarded by the progress lock.
  Coordinator* coordinator_ = nullptr;
  membership::Fabric* fabric_ = nullptr;
  life::LifeLine* life_ = nullptr;
  Time wakes_at_ = Time::max();  // when the sleeping background thread wakes by itself
  bool disarmed_ = false;        // by a waiter, while the background thread sleeps

  CallbackThread callbacks_;
  std::atomic<bool> waiter_{false};  // a user's thread waits for the progress lock
  std::atomic<bool> recording_{false};
  std::atomic<int64_t> wakeups_{0};
};

}  // namespace rueda::engine

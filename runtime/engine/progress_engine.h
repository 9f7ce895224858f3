// ProgressEngine: who runs the coordinator. Its background thread, or a user's thread that has to
// wait anyway and thereby saves the way to another thread and back.
//
//   background   sleeps in epoll without the progress lock; woken by a message, a socket, a deadline or ring()
//   a waiter     takes the progress lock, steps until its work has ended or waiting has become too long, and
//                wakes the background thread if something is left under way
//   a start      puts the operation into the queue; whoever holds the progress lock takes it, and looks once
//                more after giving the progress lock up
//
// Whenever the progress lock is free the background thread sleeps, or is about to, with its
// doorbell armed, and everything that came before arming has been looked at.
//
// Ownership: shared by works, prepared operations and the runtime, which outlives its thread.
// Threads:   any.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "collectives/base/status.h"
#include "collectives/host/progress_lock.h"
#include "collectives/host/wait_policy.h"
#include "runtime/engine/submission_queue.h"
#include "runtime/engine/work.h"

namespace rueda::membership {
struct World;
}

namespace rueda::engine {

class Coordinator;

class ProgressEngine final : public Helper {
 public:
  // helps: waiters may drive (all ranks on one host: their news is in memory).
  ProgressEngine(std::shared_ptr<SubmissionQueue> queue, host::WaitPolicy policy, bool helps)
      : queue_(std::move(queue)), policy_(policy), helps_(helps) {}
  // Both borrowed until loop() has returned. Before anything else is called.
  void attach(Coordinator* coordinator, membership::World* world);

  // The background thread: until the coordinator has ended.
  void loop();

  // Takes a claimed operation.
  void start(Prepared* prepared);
  // Takes what was queued without a ring: here if the progress lock is free, so that no thread has
  // to wake for it. Only where waiters may drive.
  void take_queued();
  bool helps() const { return helps_; }
  // Takes it and waits; returns when it has ended or sleeping is better.
  void run(Prepared* prepared, Work* work);
  void help(Work* work) override;
  void wake() override { queue_->wake(); }
  // A prepared operation gives its name up.
  void forget(Submission* submission) { queue_->forget(submission); }

  // Runs fn(coordinator) with the progress lock; the coordinator is null after its end.
  template <typename Function>
  void with_progress_lock(Function fn) {
    progress_lock_.lock();
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
  void drive(Work* work);
  void leave();
  void sleep(bool look_at_queue);
  void end();
  void refuse_all();

  host::ProgressLock progress_lock_;
  std::shared_ptr<SubmissionQueue> queue_;
  const host::WaitPolicy policy_;
  const bool helps_;
  // Guarded by the progress lock.
  Coordinator* coordinator_ = nullptr;
  membership::World* world_ = nullptr;
  Time wakes_at_ = Time::max();  // when the sleeping background thread wakes by itself
  bool disarmed_ = false;        // by a waiter, while the background thread sleeps

  std::atomic<bool> waiter_{false};  // a user's thread waits for the progress lock
  std::atomic<bool> recording_{false};
  std::atomic<int64_t> wakeups_{0};
};

}  // namespace rueda::engine

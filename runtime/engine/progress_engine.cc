#include "runtime/engine/progress_engine.h"

#include <sched.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "collectives/base/log.h"
#include "runtime/engine/coordinator.h"
#include "runtime/engine/prepared.h"
#include "runtime/membership/world.h"

namespace rueda::engine {
namespace {

constexpr int kStepsBetweenPolls = 64;
constexpr int kLooksBeforeDisarming = 32;
constexpr int kLastLooks = 4;

// Reductions must not depend on what the calling thread did to its floating-point modes.
class DefaultRounding {
 public:
#if defined(__x86_64__)
  DefaultRounding() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultRounding() {
    if (saved_ != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80;
  unsigned saved_;
#endif
};

}  // namespace

void ProgressEngine::attach(Coordinator* coordinator, membership::World* world) {
  coordinator_ = coordinator;
  world_ = world;
}

// ---- the background thread ----

void ProgressEngine::loop() {
  const DefaultRounding rounding;
  if (world_->life) {
    if (const Status owned = world_->life->own(); !owned.ok())
      RUEDA_INFO("driver", "a death of this rank will be known late: {}", owned.message());
  }
  progress_lock_.lock();
  int yields = 0;
  for (int busy = 1; !coordinator_->ended(); ++busy) {
    if (progress_lock_.contended()) {
      // A blocked thread goes on from here, and wakes this one if it leaves anything behind. What
      // came before arming is for it to see, even if its own work has ended meanwhile.
      world_->doorbell->arm();
      coordinator_->look_again();
      // Whatever has been queued is for it too; taking the progress lock back at once would starve
      // it.
      sleep(false);
      continue;
    }
    if (coordinator_->step()) {
      yields = 0;
      // Sockets are looked at while sleeping; a rank that is busy with its local peers looks now
      // and then.
      if (busy % kStepsBetweenPolls == 0) world_->transport->park(std::chrono::nanoseconds(0));
      continue;
    }
    if (coordinator_->waits_for_channels() && yields++ < policy_.background_yields) {
      progress_lock_.unlock();
      sched_yield();
      progress_lock_.lock();
      continue;
    }
    world_->doorbell->arm();
    if (coordinator_->waits_for_channels()) world_->doorbell->arm_channel();
    if (coordinator_->step()) {
      world_->doorbell->disarm();
      continue;
    }
    sleep(true);
    yields = 0;
  }
  end();
}

// With the progress lock and an armed doorbell; holds the progress lock again when it returns.
void ProgressEngine::sleep(bool look_at_queue) {
  const std::chrono::nanoseconds nap = coordinator_->nap();
  wakes_at_ = nap.count() < 0 ? Time::max() : std::chrono::steady_clock::now() + nap;
  progress_lock_.unlock();
  // Who queued something while this thread held the progress lock relies on it to look again.
  if (!look_at_queue || queue_->empty()) world_->transport->sleep(nap);
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  progress_lock_.lock();
  wakes_at_ = Time::min();  // awake
  disarmed_ = false;
  world_->transport->wake_up();
}

void ProgressEngine::end() {
  coordinator_ = nullptr;
  if (world_->life) world_->life->disown();
  refuse_all();
  progress_lock_.unlock();
  if (!queue_->empty() && progress_lock_.try_lock()) {
    refuse_all();
    progress_lock_.unlock();
  }
}

// After the end: nobody else takes what is still queued.
void ProgressEngine::refuse_all() {
  const Status closed = queue_->closed();
  for (Prepared* next = queue_->take(); next != nullptr;) {
    Prepared* const prepared = next;
    next = prepared->next();
    Submission submission = prepared->as_submission();
    queue_->release(&submission);
    submission.work->complete({closed.code(), submission.work->title() + ": " + closed.message()});
  }
  // Submitted after the coordinator's last look and before it closed the queue.
  for (Submission& submission : queue_->drain()) {
    queue_->release(&submission);
    submission.work->complete({closed.code(), submission.work->title() + ": " + closed.message()});
  }
}

// ---- users' threads ----

void ProgressEngine::start(Prepared* prepared) {
  queue_->push(prepared);
  // Sequentially consistent on both sides: either this sees the progress lock free, or its holder
  // sees the operation when it leaves.
  if (!progress_lock_.try_lock()) return;
  if (coordinator_ != nullptr) coordinator_->take_prepared();
  leave();
}

void ProgressEngine::take_queued() {
  // As start(): either this sees the progress lock free, or its holder sees the queue filled when
  // it leaves.
  if (!progress_lock_.try_lock()) return;
  if (coordinator_ != nullptr) {
    const DefaultRounding rounding;
    coordinator_->step();
  }
  leave();
}

bool ProgressEngine::take_progress_lock() {
  if (progress_lock_.try_lock()) return true;
  // One may wait for the progress lock; others sleep until their work has ended.
  if (waiter_.exchange(true, std::memory_order_acquire)) return false;
  progress_lock_.lock();
  waiter_.store(false, std::memory_order_release);
  return true;
}

void ProgressEngine::run(Prepared* prepared, Work* work) {
  if (!helps_) return start(prepared);
  if (progress_lock_.try_lock()) {
    if (coordinator_ != nullptr) {
      const DefaultRounding rounding;
      coordinator_->take(prepared);
      drive(work);
    } else {
      queue_->push(prepared);
    }
    return leave();
  }
  start(prepared);
  help(work);
}

void ProgressEngine::help(Work* work) {
  if (!helps_ || !take_progress_lock()) return;
  const DefaultRounding rounding;
  drive(work);
  leave();
}

// With the progress lock: until the work has ended, somebody else needs the progress lock, or it
// takes too long.
void ProgressEngine::drive(Work* work) {
  if (coordinator_ == nullptr) return;
  host::Waiting waiting(policy_);
  int looks = 0;
  while (!work->done() && !coordinator_->ended()) {
    const bool moved = coordinator_->advance();
    if (moved) waiting.restart();
    if (work->done()) return;
    if (++looks == kLooksBeforeDisarming) {
      // It takes longer: peers need not wake the background thread for what is seen here anyway.
      work->want();
      if (!disarmed_) world_->doorbell->disarm();
      disarmed_ = true;
    }
    if (progress_lock_.contended() || (!moved && !waiting.next())) return;
  }
}

// Gives the progress lock up. What is left under way is the background thread's.
void ProgressEngine::leave() {
  bool ring = false;
  if (coordinator_ == nullptr) {
    refuse_all();
  } else {
    if (disarmed_) {
      disarmed_ = false;
      world_->doorbell->arm();
      coordinator_->step();  // what came before arming is this thread's to see
    }
    for (int look = 0; look < kLastLooks && !coordinator_->quiet(); ++look) coordinator_->step();
    ring = coordinator_->needs_thread(wakes_at_);
  }
  progress_lock_.unlock();
  if (ring || !queue_->empty()) queue_->ring();
}

}  // namespace rueda::engine

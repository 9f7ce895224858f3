#include "runtime/engine/progress_engine.h"

#include <sched.h>

#include <algorithm>

#include "collectives/base/log.h"
#include "runtime/engine/coordinator.h"
#include "runtime/membership/fabric.h"
#include "runtime/observe/life/life_line.h"

namespace rueda::engine {
namespace {

constexpr int kStepsBetweenPolls = 64;
constexpr int kLooksBeforeDisarming = 32;
constexpr int kLastLooks = 4;
// A look at the clock costs as much as some of the others.
constexpr int kLooksBetweenClocks = 4;

}  // namespace

void ProgressEngine::attach(Coordinator* coordinator, membership::Fabric* fabric,
                            life::LifeLine* life) {
  coordinator_ = coordinator;
  fabric_ = fabric;
  life_ = life;
  if (life != nullptr) blocked.show(life->blocked_since(), life->blocked_ns());
}

// ---- the background thread ----

void ProgressEngine::loop() {
  const DefaultFloatMode mode;
  if (life_ != nullptr) life_->begin();
  progress_lock_.lock();
  int yields = 0;
  for (unsigned busy = 1; !coordinator_->ended(); ++busy) {  // for years: it may wrap
    if (progress_lock_.contended()) {
      // A blocked thread goes on from here, and wakes this one if it leaves anything behind. What
      // came before arming is for it to see, even if its own work has ended meanwhile.
      fabric_->doorbell->arm();
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
      if (busy % kStepsBetweenPolls == 0) fabric_->transport->park(std::chrono::nanoseconds(0));
      continue;
    }
    if (coordinator_->waits_for_channels() && yields++ < policy_.background_yields) {
      progress_lock_.unlock();
      sched_yield();
      progress_lock_.lock();
      continue;
    }
    fabric_->doorbell->arm();
    if (coordinator_->waits_for_channels()) fabric_->doorbell->arm_channel();
    if (coordinator_->step()) {
      fabric_->doorbell->disarm();
      continue;
    }
    sleep(true);
    yields = 0;
  }
  end();
}

// With the progress lock and an armed doorbell; holds the progress lock again when it returns.
void ProgressEngine::sleep(bool look_at_queue) {
  wakes_at_ = coordinator_->wakes_at();
  std::chrono::nanoseconds nap(-1);
  if (wakes_at_ != Time::max())
    nap = std::max(wakes_at_ - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
  progress_lock_.unlock();
  // Who queued something while this thread held the progress lock relies on it to look again.
  if (!look_at_queue || queue_->empty()) fabric_->transport->sleep(nap);
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  progress_lock_.lock();
  wakes_at_ = Time::min();  // awake
  disarmed_ = false;
  fabric_->transport->wake_up();
}

void ProgressEngine::end() {
  coordinator_ = nullptr;
  if (life_ != nullptr) life_->leave();
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
  for (Request* next = queue_->take(); next != nullptr;) {
    Request* const request = next;
    next = request->next();
    queue_->release(request);
    request->end(closed.with_message(request->title() + ": " + closed.message()));
  }
}

// ---- users' threads ----

void ProgressEngine::start(std::span<Request* const> requests) {
  queue_->push(requests);
  // Sequentially consistent on both sides: either this sees the progress lock free, or its holder
  // sees the requests when it leaves.
  if (!progress_lock_.try_lock()) return;
  const DefaultFloatMode mode;
  if (coordinator_ != nullptr) coordinator_->take_requests();
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

void ProgressEngine::run(Request* request, const Deadline& deadline) {
  if (!helps_) return start({&request, 1});
  if (progress_lock_.try_lock()) {
    const DefaultFloatMode mode;
    if (coordinator_ != nullptr) {
      coordinator_->take_requests();  // what this thread had started before comes before
      coordinator_->take(request);
      const BlockedClock::Blocked blocked_here(&waiting);
      drive(request, deadline);
    } else {
      queue_->push(request);
    }
    return leave();
  }
  start({&request, 1});
  help(request, deadline);
}

void ProgressEngine::help(Completion* awaited, const Deadline& deadline) {
  if (!helps_ || !take_progress_lock()) return;
  const DefaultFloatMode mode;
  drive(awaited, deadline);
  leave();
}

// With the progress lock: until the awaited has ended, the deadline has passed, somebody else needs
// the progress lock, or it takes too long.
void ProgressEngine::drive(Completion* awaited, const Deadline& deadline) {
  if (coordinator_ == nullptr) return;
  host::Waiting patience(policy_);
  int looks = 0;
  while (!awaited->done() && !coordinator_->ended()) {
    const bool moved = coordinator_->advance();
    if (moved) patience.restart();
    if (awaited->done()) return;
    if (++looks == kLooksBeforeDisarming) {
      // It takes longer: peers need not wake the background thread for what is seen here anyway.
      awaited->set_awaited();
      if (!disarmed_) fabric_->doorbell->disarm();
      disarmed_ = true;
    }
    if (deadline && looks % kLooksBetweenClocks == 0 &&
        std::chrono::steady_clock::now() >= *deadline) {
      return;
    }
    if (progress_lock_.contended() || (!moved && !patience.next())) return;
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
      fabric_->doorbell->arm();
      coordinator_->step();  // what came before arming is this thread's to see
    }
    for (int look = 0; look < kLastLooks && !coordinator_->quiet(); ++look) coordinator_->step();
    ring = coordinator_->needs_thread(wakes_at_);
  }
  progress_lock_.unlock();
  if (ring || !queue_->empty()) queue_->ring();
}

}  // namespace rueda::engine

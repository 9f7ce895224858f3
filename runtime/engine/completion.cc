#include "runtime/engine/completion.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "collectives/host/event_fd.h"
#include "runtime/engine/end_watch.h"

namespace rueda::engine {
namespace {

thread_local int callbacks_under_way = 0;

}  // namespace

void Completion::call_back(const std::function<void()>& callback) {
  ++callbacks_under_way;
  callback();
  --callbacks_under_way;
}

bool Completion::in_callback() { return callbacks_under_way > 0; }

Status Completion::check_may_wait() const {
  if (!in_callback()) return {};
  return failed_precondition(title_ +
                             " has not ended, and a callback that waits would hold up what it "
                             "waits for: let another thread wait");
}

void Completion::set_awaited() {
  awaited_.store(true, std::memory_order_seq_cst);
  if (may_batch_.load(std::memory_order_seq_cst) && helper_) helper_->wake();
}

Status Completion::wait(std::chrono::nanoseconds timeout) {
  if (done()) return status_;
  RUEDA_RETURN_IF_ERROR(check_may_wait());
  const BlockedClock::Blocked waiting(helper_ ? &helper_->waiting : nullptr);
  Helper::Deadline deadline;
  if (timeout.count() >= 0) deadline = std::chrono::steady_clock::now() + timeout;
  if (helper_ && timeout.count() != 0) helper_->help(this, deadline);
  return sleep_until(deadline, timeout);
}

const Status& Completion::sleep() {
  while (!done()) {
    const Status interrupted = sleep_until({}, std::chrono::nanoseconds(-1));
  }
  return status_;
}

Status Completion::sleep_until(const Helper::Deadline& deadline, std::chrono::nanoseconds timeout) {
  if (done()) return status_;
  set_awaited();
  BlockedClock::Blocked sleeping(helper_ ? &helper_->blocked : nullptr);
  while (!done()) {
    uint32_t expected = kPending;
    state_.compare_exchange_strong(expected, kAwaited, std::memory_order_acq_rel);
    const int error = futex_wait(&state_, kAwaited, deadline);
    if (error == 0 || done()) continue;
    if (error == EINTR || error == ETIMEDOUT) sleeping.slice_ends();
    if (error == EINTR) return {Code::kAborted, title_ + ": the wait was interrupted by a signal"};
    if (error == ETIMEDOUT) {
      return deadline_exceeded(title_ + " has not ended after " +
                               std::to_string(std::chrono::duration<double>(timeout).count()) +
                               " s: " + missing() + "; it goes on, wait again or shut down");
    }
  }
  return status_;
}

std::string Completion::missing() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return note_.empty() ? "submitted here, not yet by every rank or still under way" : note_;
}

void Completion::on_end(std::function<void()> callback) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    asked_.store(true, std::memory_order_seq_cst);
    if (state_.load(std::memory_order_seq_cst) != kDone) {
      callbacks_.push_back({starts_, std::move(callback)});
      return;
    }
  }
  call_back(callback);
}

Result<int> Completion::event_fd() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!event_fd_) {
    RUEDA_ASSIGN_OR_RETURN(event_fd_,
                           host::make_event_fd("no descriptor for the end of " + title_));
    asked_.store(true, std::memory_order_seq_cst);
    if (state_.load(std::memory_order_seq_cst) == kDone) host::ring_event_fd(event_fd_.get());
  }
  return event_fd_.get();
}

void Completion::add(EndWatch* watch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watches_.push_back(watch);
  asked_.store(true, std::memory_order_seq_cst);
}

void Completion::remove(EndWatch* watch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase(watches_, watch);
}

// The end of that start, to those who asked. The next may have begun meanwhile.
void Completion::tell(uint64_t start) {
  std::vector<Callback> due;
  const std::shared_ptr<Helper> helper = helper_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (event_fd_ && starts_ == start) host::ring_event_fd(event_fd_.get());
    for (EndWatch* const watch : watches_) watch->ring();
    const auto later = std::stable_partition(
        callbacks_.begin(), callbacks_.end(),
        [start](const Callback& callback) { return callback.start <= start; });
    due.assign(std::make_move_iterator(callbacks_.begin()), std::make_move_iterator(later));
    callbacks_.erase(callbacks_.begin(), later);
  }
  for (Callback& callback : due) {
    if (!helper || !helper->take_callback(&callback.call)) call_back(callback.call);
  }
}

void Completion::restart() {
  if (!status_.ok()) status_ = {};
  awaited_.store(false, std::memory_order_relaxed);
  may_batch_.store(false, std::memory_order_relaxed);
  const uint64_t start = starts_.load(std::memory_order_relaxed) + 1;  // the only writer
  if (asked_.load(std::memory_order_relaxed)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    starts_.store(start, std::memory_order_relaxed);
    if (event_fd_) host::clear_event_fd(event_fd_.get());
    state_.store(kPending, std::memory_order_release);
    return;
  }
  starts_.store(start, std::memory_order_relaxed);
  state_.store(kPending, std::memory_order_release);
}

void Completion::complete(Status status) {
  if (done()) return;
  status_ = std::move(status);
  complete();
}

void Completion::complete() {
  const uint64_t start = starts_.load(std::memory_order_relaxed);
  const uint32_t before = state_.exchange(kDone, std::memory_order_seq_cst);
  if (before == kAwaited) futex_wake(&state_);
  if (asked_.load(std::memory_order_seq_cst)) tell(start);
}

void Completion::set_note(std::string note) {
  const std::lock_guard<std::mutex> lock(mutex_);
  note_ = std::move(note);
}

bool Completion::mark_may_batch() {
  may_batch_.store(true, std::memory_order_seq_cst);
  return awaited();
}

}  // namespace rueda::engine

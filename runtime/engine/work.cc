#include "runtime/engine/work.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <optional>

namespace rueda::engine {
namespace {

long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation | FUTEX_PRIVATE_FLAG,
                 value, timeout, nullptr, 0);
}

}  // namespace

void Work::want() {
  wanted_.store(true, std::memory_order_seq_cst);
  if (holdable_.load(std::memory_order_seq_cst) && helper_) helper_->wake();
}

Status Work::wait(std::chrono::nanoseconds timeout) {
  if (done()) return status_;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  if (timeout.count() >= 0) deadline = std::chrono::steady_clock::now() + timeout;
  if (helper_ && timeout.count() != 0) helper_->help(this);
  return sleep_until(deadline, timeout);
}

const Status& Work::sleep() {
  while (!done()) {
    const Status interrupted = sleep_until({}, std::chrono::nanoseconds(-1));
  }
  return status_;
}

Status Work::sleep_until(std::optional<std::chrono::steady_clock::time_point> deadline,
                         std::chrono::nanoseconds timeout) {
  if (done()) return status_;
  want();
  const BlockedClock::Sleep sleeping(helper_ ? &helper_->blocked : nullptr);
  while (!done()) {
    uint32_t expected = kPending;
    state_.compare_exchange_strong(expected, kAwaited, std::memory_order_acq_rel);
    timespec left{};
    if (deadline) {
      const auto rest = std::max<std::chrono::nanoseconds>(
          *deadline - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
      left.tv_sec = rest.count() / 1'000'000'000;
      left.tv_nsec = rest.count() % 1'000'000'000;
    }
    const long result = futex(&state_, FUTEX_WAIT, kAwaited, deadline ? &left : nullptr);
    if (result == 0 || done()) continue;
    if (errno == EINTR) return {Code::kAborted, title_ + ": the wait was interrupted by a signal"};
    if (errno == ETIMEDOUT) {
      const std::lock_guard<std::mutex> lock(note_mutex_);
      return deadline_exceeded(
          title_ + " has not ended after " +
          std::to_string(std::chrono::duration<double>(timeout).count()) + " s: " +
          (note_.empty() ? "submitted here, not yet by every rank or still under way" : note_) +
          "; it goes on, wait again or shut down");
    }
  }
  return status_;
}

std::byte* Work::set_output(std::byte* memory, Shape shape, DType dtype,
                            std::vector<int64_t> received_rows) {
  if (memory == nullptr) {
    const size_t bytes = static_cast<size_t>(element_count(shape)) * size_of(dtype);
    owned_ = ResultMemory(bytes);
    memory = owned_.data();
  }
  output_ = memory;
  output_shape_ = std::move(shape);
  received_rows_ = std::move(received_rows);
  return memory;
}

bool Work::released() const {
  if (!done()) return false;
  if (device_end_ == nullptr) return true;
  const auto reached = device_end_->query();
  return !reached.ok() || reached.value();  // a GPU that answers with errors does nothing more
}

void Work::restart() {
  status_ = {};
  device_end_ = nullptr;
  wanted_.store(false, std::memory_order_relaxed);
  holdable_.store(false, std::memory_order_relaxed);
  state_.store(kPending, std::memory_order_release);
}

void Work::complete(Status status) {
  if (done()) return;
  status_ = std::move(status);
  complete();
}

void Work::complete() {
  if (state_.exchange(kDone, std::memory_order_acq_rel) == kAwaited)
    futex(&state_, FUTEX_WAKE, INT_MAX, nullptr);
}

void Work::set_note(std::string note) {
  const std::lock_guard<std::mutex> lock(note_mutex_);
  note_ = std::move(note);
}

bool Work::mark_holdable() {
  holdable_.store(true, std::memory_order_seq_cst);
  return wanted();
}

}  // namespace rueda::engine

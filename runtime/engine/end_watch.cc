#include "runtime/engine/end_watch.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace rueda::engine {
namespace {

long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation | FUTEX_PRIVATE_FLAG,
                 value, timeout, nullptr, 0);
}

}  // namespace

int futex_wait(std::atomic<uint32_t>* word, uint32_t value, const Helper::Deadline& deadline) {
  timespec left{};
  if (deadline) {
    const auto rest = std::max<std::chrono::nanoseconds>(
        *deadline - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
    left.tv_sec = rest.count() / 1'000'000'000;
    left.tv_nsec = rest.count() % 1'000'000'000;
  }
  return futex(word, FUTEX_WAIT, value, deadline ? &left : nullptr) == 0 ? 0 : errno;
}

void futex_wake(std::atomic<uint32_t>* word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

// ---- any of several ----

Result<std::optional<size_t>> Completion::wait_any(std::span<Completion* const> all,
                                                   std::chrono::nanoseconds timeout,
                                                   const std::function<bool(size_t)>& take) {
  // The first that has not ended; place: of one that was taken.
  Completion* pending = nullptr;
  const auto look = [&]() -> std::optional<size_t> {
    pending = nullptr;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] == nullptr) continue;
      if (!all[i]->done()) {
        if (pending == nullptr) pending = all[i];
      } else if (take(i)) {
        return i;
      }
    }
    return std::nullopt;
  };
  if (const auto place = look(); place || pending == nullptr) return place;
  RUEDA_RETURN_IF_ERROR(pending->check_may_wait());
  Helper::Deadline deadline;
  if (timeout.count() >= 0) deadline = std::chrono::steady_clock::now() + timeout;
  EndWatch watch;
  struct Watched {
    std::span<Completion* const> all;
    EndWatch* watch;
    ~Watched() {
      for (Completion* const one : all)
        if (one != nullptr) one->remove(watch);
    }
  } const watched{all, &watch};
  for (Completion* const one : all) {
    if (one == nullptr) continue;
    one->add(&watch);
    one->set_awaited();
  }
  Helper* const helper = pending->helper_.get();
  const BlockedClock::Blocked waiting(helper ? &helper->waiting : nullptr);
  BlockedClock::Blocked sleeping(helper ? &helper->blocked : nullptr);
  while (true) {
    const uint32_t rung = watch.rung();
    if (const auto place = look(); place || pending == nullptr) return place;
    const int error = watch.sleep(rung, deadline);
    if (error == EINTR || error == ETIMEDOUT) sleeping.slice_ends();
    const std::string others = all.size() > 1 ? " and the others" : "";
    if (error == EINTR) {
      return Status(Code::kAborted,
                    pending->title() + others + ": the wait was interrupted by a signal");
    }
    if (error == ETIMEDOUT) {
      if (const auto place = look(); place || pending == nullptr) return place;
      return deadline_exceeded(pending->title() + others + ": none has ended after " +
                               std::to_string(std::chrono::duration<double>(timeout).count()) +
                               " s: " + pending->missing() + "; they go on, wait again");
    }
  }
}

}  // namespace rueda::engine

#include "runtime/rendezvous/poll_until.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

namespace rueda::rendezvous {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

Deadline deadline_in(nanoseconds timeout) {
  constexpr nanoseconds kYear = std::chrono::hours(24 * 365);
  return std::chrono::steady_clock::now() + std::clamp(timeout, nanoseconds(0), kYear);
}

namespace {

Status wait_for(int fd, short events, Deadline deadline, bool interruptible) {
  pollfd waiting{fd, events, 0};
  for (;;) {
    const auto left = deadline - std::chrono::steady_clock::now();
    // Rounded up, so that the last fraction of a millisecond is slept and not spun away.
    const auto ms = std::clamp<int64_t>(std::chrono::ceil<milliseconds>(left).count(), 0, 60'000);
    const int ready = ::poll(&waiting, 1, static_cast<int>(ms));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return errno_status("poll", errno);
    if (ready < 0 && interruptible) return {Code::kAborted, "a signal came"};
    if (ready == 0 && left <= nanoseconds(0)) return deadline_exceeded("the time is over");
  }
}

}  // namespace

Status poll_until(int fd, short events, Deadline deadline) {
  return wait_for(fd, events, deadline, false);
}

Status poll_unless_interrupted(int fd, short events, Deadline deadline) {
  return wait_for(fd, events, deadline, true);
}

Status poll_patiently(int fd, short events, const Patience& patience) {
  if (!patience.look) return poll_until(fd, events, patience.deadline);
  for (;;) {
    const auto next = std::chrono::steady_clock::now() + Patience::kLookAround;
    const Status ready = poll_until(fd, events, std::min(next, patience.deadline));
    if (ready.code() != Code::kDeadlineExceeded || next >= patience.deadline) return ready;
    RUEDA_RETURN_IF_ERROR(patience.look());
  }
}

}  // namespace rueda::rendezvous

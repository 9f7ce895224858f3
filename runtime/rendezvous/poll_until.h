// Waiting for a descriptor with a deadline; interruptions by signals are waited through.
#pragma once

#include <cerrno>
#include <chrono>
#include <functional>

#include "collectives/base/status.h"

namespace rueda::rendezvous {

using Deadline = std::chrono::steady_clock::time_point;

// A deadline that a timeout from outside cannot overflow: at most a year from now.
Deadline deadline_in(std::chrono::nanoseconds timeout);

// Returns ok when one of `events` (poll's) or a hang-up has come, kDeadlineExceeded when not.
Status poll_until(int fd, short events, Deadline deadline);

// The same, but a signal ends the wait: kAborted.
Status poll_unless_interrupted(int fd, short events, Deadline deadline);

// How long to wait for another process, and what may end it earlier.
struct Patience {
  // NOLINTNEXTLINE(google-explicit-constructor): a deadline alone is the usual case.
  Patience(Deadline until, std::function<Status()> asked = {})
      : deadline(until), look(std::move(asked)) {}
  Deadline deadline;
  // Asked every kLookAround while nothing comes; an error ends the wait. May be empty.
  std::function<Status()> look;
  static constexpr std::chrono::milliseconds kLookAround{200};
};

// As above; also ends with what a look says.
Status poll_patiently(int fd, short events, const Patience& patience);

// errno after a call on a descriptor that does not block: nothing is wrong, it is not ready yet.
inline bool try_again(int err) { return err == EAGAIN || err == EWOULDBLOCK || err == EINTR; }

}  // namespace rueda::rendezvous

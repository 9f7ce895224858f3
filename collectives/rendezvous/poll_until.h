// Waiting for a descriptor with a deadline; interruptions by signals are waited through.
#pragma once

#include <cerrno>
#include <chrono>

#include "collectives/base/status.h"

namespace rueda::rendezvous {

using Deadline = std::chrono::steady_clock::time_point;

// A deadline that a timeout from outside cannot overflow: at most a year from now.
Deadline deadline_in(std::chrono::nanoseconds timeout);

// Returns ok when one of `events` (poll's) or a hang-up has come, kDeadlineExceeded when not.
Status poll_until(int fd, short events, Deadline deadline);

// errno after a call on a descriptor that does not block: nothing is wrong, it is not ready yet.
inline bool try_again(int err) { return err == EAGAIN || err == EWOULDBLOCK || err == EINTR; }

}  // namespace rueda::rendezvous

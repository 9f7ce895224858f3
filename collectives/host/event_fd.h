// An eventfd: one thread rings it, another waits until it can be read and clears it. Non-blocking,
// closed on exec.
#pragma once

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"

namespace rueda::host {

// The error begins with `what`.
inline Result<UniqueFd> make_event_fd(const std::string& what = "cannot make an eventfd") {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return errno_status(what, errno);
  return fd;
}

// Cannot fail in a way that matters: a full one is readable already, a closed one has nobody who
// waits.
inline void ring_event_fd(int fd) {
  const uint64_t one = 1;
  while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

// How often it was rung since it was last cleared; 0: not at all.
inline uint64_t clear_event_fd(int fd) {
  uint64_t rings = 0;
  ssize_t got = 0;
  while ((got = read(fd, &rings, sizeof(rings))) < 0 && errno == EINTR) {
  }
  return got == sizeof(rings) ? rings : 0;
}

}  // namespace rueda::host

// What happens to rueda in a forked child (a data-loader worker, say): it must not keep the job's
// sockets open, or nobody would see its parent die, and it must not use the parent's runtime, whose
// coordinator thread it does not have.
//
// Process-wide and shared by all runtimes of a process: a fork handler, installed with the first
// descriptor.
#pragma once

#include <cstdint>

#include "collectives/base/unique_fd.h"

namespace rueda::host {

// Another number in every forked child (0 where nothing was forked yet).
uint64_t fork_generation();

// Forked children close this descriptor, too; it stays the caller's, who keeps it open for as long
// as the process lives.
void close_in_forked_children(int fd);

// Forked children call this before they close anything. Only async-signal-safe calls in it: another
// thread may have held any lock when the process forked. Once per function, for good.
void run_in_forked_children(void (*function)());

// A descriptor that forked children close. Threads: as UniqueFd.
class GuardedFd {
 public:
  GuardedFd() = default;
  explicit GuardedFd(UniqueFd fd);
  GuardedFd(GuardedFd&& other) noexcept;
  GuardedFd& operator=(GuardedFd&& other) noexcept;
  GuardedFd(const GuardedFd&) = delete;
  GuardedFd& operator=(const GuardedFd&) = delete;
  ~GuardedFd() { reset(); }

  int get() const { return fd_; }
  void reset();

 private:
  int fd_ = -1;
  uint64_t generation_ = 0;
};

}  // namespace rueda::host

// EventLoop: the one place where a coordinator sleeps. epoll over the doorbell, sockets and a
// deadline.
//
// Threads: one thread uses it. Watched fds are borrowed; remove() before closing one.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/host/fork_guard.h"

namespace rueda::host {

// Told when its fd is ready. `writable` and `readable` may both be set; end of stream counts as
// readable.
class FdHandler {
 public:
  virtual ~FdHandler() = default;
  virtual void on_ready(bool readable, bool writable) = 0;
};

class EventLoop {
 public:
  static Result<EventLoop> create();

  // handler nullptr: only wakes the sleeper (the doorbell). Borrowed until remove().
  Status add(int fd, FdHandler* handler);
  // Asks for writability too, or no longer.
  void want_write(int fd, bool wanted) { want(fd, true, wanted); }
  // Asks for these alone. The loss of a connection is told in any case.
  void want(int fd, bool readable, bool writable);
  void remove(int fd);

  // Waits at most `timeout` (negative: without limit), tells the handlers. True if any fd was
  // ready.
  bool wait(std::chrono::nanoseconds timeout);
  // Its two halves: sleep touches nothing that add, want, remove and wait touch, so another
  // thread may call these meanwhile; dispatch tells the handlers what the last sleep found.
  void sleep(std::chrono::nanoseconds timeout);
  bool dispatch();
  bool empty() const { return handlers_.empty(); }

 private:
  using Found = std::array<epoll_event, 64>;

  explicit EventLoop(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  int look(Found* found, std::chrono::nanoseconds timeout) const;
  bool tell(const Found& found, int count);

  GuardedFd epoll_;
  std::unordered_map<int, FdHandler*> handlers_;
  Found found_{};
  int found_count_ = 0;
};

}  // namespace rueda::host

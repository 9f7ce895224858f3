#include "collectives/host/event_loop.h"

#include <algorithm>
#include <cerrno>
#include <limits>

namespace rueda::host {

Result<EventLoop> EventLoop::create() {
  UniqueFd fd(epoll_create1(EPOLL_CLOEXEC));
  if (fd.get() < 0) return errno_status("cannot create an epoll set", errno);
  return EventLoop(std::move(fd));
}

Status EventLoop::add(int fd, FdHandler* handler) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return errno_status("cannot watch a socket", errno);
  handlers_[fd] = handler;
  return {};
}

void EventLoop::want(int fd, bool readable, bool writable) {
  epoll_event event{};
  event.events = (readable ? EPOLLIN : 0u) | (writable ? EPOLLOUT : 0u);
  event.data.fd = fd;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(fd);
}

int EventLoop::look(Found* found, std::chrono::nanoseconds timeout) const {
  int milliseconds = -1;
  if (timeout.count() >= 0) {
    // Rounded up, so that a deadline has passed when the wait ends by it.
    const int64_t rounded = (timeout.count() + 999'999) / 1'000'000;
    milliseconds = static_cast<int>(std::min<int64_t>(rounded, std::numeric_limits<int>::max()));
  }
  return epoll_wait(epoll_.get(), found->data(), static_cast<int>(found->size()), milliseconds);
}

bool EventLoop::wait(std::chrono::nanoseconds timeout) {
  Found found;
  return tell(found, look(&found, timeout));
}

void EventLoop::sleep(std::chrono::nanoseconds timeout) { found_count_ = look(&found_, timeout); }

bool EventLoop::dispatch() { return tell(found_, std::exchange(found_count_, 0)); }

bool EventLoop::tell(const Found& found, int count) {
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = found[static_cast<size_t>(i)];
    // Looked up afresh: an earlier handler of this round may have removed it.
    const auto it = handlers_.find(event.data.fd);
    if (it == handlers_.end() || it->second == nullptr) continue;
    const uint32_t bits = event.events;
    it->second->on_ready((bits & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0,
                         (bits & EPOLLOUT) != 0);
  }
  return count > 0;
}

}  // namespace rueda::host

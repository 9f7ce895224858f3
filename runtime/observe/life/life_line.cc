#include "runtime/observe/life/life_line.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "collectives/host/event_fd.h"
#include "runtime/observe/life/crash_handlers.h"

namespace rueda::life {
namespace {

std::atomic<bool> in_use{false};  // the process has one page

Result<UniqueFd> copy_of(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy)
    return errno_status("RUEDA_LIFE_FDS: descriptor " + std::to_string(fd) + " is not open", errno);
  return copy;
}

// A child of the rank may have something else at that number.
bool is_life_page(int fd) {
  char target[64] = "";
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (readlink(link.c_str(), target, sizeof(target) - 1) < 0)
    return fcntl(fd, F_GETFD) >= 0;  // no /proc
  return std::string(target).find("rueda-life") != std::string::npos;
}

}  // namespace

Result<LifeFds> LifeFds::parse(const std::string& text) {
  LifeFds fds;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int* fd : {&fds.page, &fds.news, &fds.alarm}) {
    if (fd != &fds.page && (at == end || *at++ != ','))
      return invalid_argument("RUEDA_LIFE_FDS='" + text +
                              "': expected three descriptors, as ruedarun sets them");
    const auto [rest, error] = std::from_chars(at, end, *fd);
    if (error != std::errc() || *fd < 0)
      return invalid_argument("RUEDA_LIFE_FDS='" + text +
                              "': expected three descriptors, as ruedarun sets them");
    at = rest;
  }
  return fds;
}

Result<std::unique_ptr<LifeLine>> LifeLine::open(const LifeFds& fds, bool crash_handlers) {
  if (in_use.exchange(true)) return std::unique_ptr<LifeLine>();
  const auto opened = [&]() -> Result<std::unique_ptr<LifeLine>> {
    if (!is_life_page(fds.page)) {
      return failed_precondition(
          "this process has the variables of a rank that ruedarun has started (RUEDA_RANK, "
          "RUEDA_LIFE_FDS), but not "
          "its descriptors: either it is a child of that rank (a worker, a program that the rank "
          "has started, what "
          "the rank became by exec after it had joined), or something has closed them "
          "(os.closerange, a "
          "daemon). Only the rank itself can join its job; a program that it starts may be a job "
          "of its own: "
          "ruedarun -np 1 ...");
    }
    for (const int fd : {fds.page, fds.news, fds.alarm}) {
      fcntl(fd, F_SETFD, FD_CLOEXEC);
      host::close_in_forked_children(fd);
    }
    RUEDA_ASSIGN_OR_RETURN(LifeMapping page, LifeMapping::open(fds.page));
    RUEDA_ASSIGN_OR_RETURN(UniqueFd news, copy_of(fds.news));
    RUEDA_ASSIGN_OR_RETURN(UniqueFd alarm, copy_of(fds.alarm));
    return std::unique_ptr<LifeLine>(
        new LifeLine(std::move(page), std::move(news), std::move(alarm)));
  }();
  if (!opened.ok()) {
    in_use.store(false);
    return opened.status();
  }
  auto line = std::move(const_cast<Result<std::unique_ptr<LifeLine>>&>(opened)).value();
  line->page_->pid.store(getpid(), std::memory_order_release);
  if (crash_handlers) watch_crashes(line->page_.page(), line->alarm_.get());
  return line;
}

LifeLine::~LifeLine() {
  ignore_crashes();
  // Also after an init that failed: this rank takes part no more, and its end is nobody's loss.
  page_->owner.store(LifePage::kClosed, std::memory_order_release);
  in_use.store(false);
}

Status LifeLine::watch(host::EventLoop* loop) { return loop->add(news_.get(), this); }
void LifeLine::unwatch(host::EventLoop* loop) { loop->remove(news_.get()); }

void LifeLine::on_ready(bool, bool) {
  host::clear_event_fd(news_.get());
  news_came_ = true;
}

Status LifeLine::own() {
  const Status owned = take_ownership();
  tried_.store(true);
  tried_.notify_all();
  return owned;
}

Status LifeLine::take_ownership() {
  use_crash_stack();
  const uint32_t thread = static_cast<uint32_t>(syscall(SYS_gettid));
  if (syscall(SYS_get_robust_list, 0, &earlier_head_, &earlier_size_) != 0)
    return errno_status("get_robust_list", errno);
  node_.next = reinterpret_cast<RobustNode*>(&head_);
  head_.list = &node_;
  head_.futex_offset = static_cast<long>(reinterpret_cast<uintptr_t>(&page_->owner) -
                                         reinterpret_cast<uintptr_t>(&node_));
  head_.pending = nullptr;
  if (syscall(SYS_set_robust_list, &head_, sizeof(head_)) != 0)
    return errno_status("set_robust_list", errno);
  owned_ = true;
  // The agent waits always: without the bit the kernel would wake nobody.
  page_->owner.store(thread | FUTEX_WAITERS, std::memory_order_release);
  return {};
}

void LifeLine::disown() {
  if (!std::exchange(owned_, false)) return;
  page_->owner.store(LifePage::kClosed, std::memory_order_release);
  syscall(SYS_set_robust_list, earlier_head_, earlier_size_);
}

void LifeLine::submitted(std::string_view name, int64_t now_ns) {
  // Small operations come again and again under one name.
  const bool again = last_.name.is(name);
  if (!again) last_.name.set(name);
  ++last_.number;
  last_.step = steps_.load(std::memory_order_relaxed);
  last_.at_ns = now_ns;
  page_->operation.publish(last_, again ? offsetof(LastOperation, number) : 0);
}

std::optional<LostRank> LifeLine::wait_for_verdict(std::chrono::milliseconds limit) const {
  if (auto told = lost()) return told;
  pollfd news = {news_.get(), POLLIN, 0};
  poll(&news, 1, static_cast<int>(limit.count()));
  return lost();
}

std::optional<LostRank> LifeLine::lost() const {
  if (page_->lost.version() == 0) return std::nullopt;
  return page_->lost.read();
}

}  // namespace rueda::life

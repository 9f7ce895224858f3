#include "runtime/observe/life/life_line.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "collectives/host/event_fd.h"
#include "runtime/observe/life/crash_handlers.h"

namespace rueda::life {
namespace {

std::atomic<bool> in_use{false};  // the process has one page

// A child of the rank may have something else at that number.
bool is_life_page(int fd) {
  char target[64] = "";
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (readlink(link.c_str(), target, sizeof(target) - 1) < 0)
    return fcntl(fd, F_GETFD) >= 0;  // no /proc
  return std::string(target).find("rueda-life") != std::string::npos;
}

}  // namespace

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
    RUEDA_ASSIGN_OR_RETURN(LifeKeeper* const keeper, LifeKeeper::of(fds));
    return std::unique_ptr<LifeLine>(new LifeLine(*keeper));
  }();
  if (!opened.ok()) {
    in_use.store(false);
    return opened.status();
  }
  auto line = std::move(const_cast<Result<std::unique_ptr<LifeLine>>&>(opened)).value();
  line->page_->pid.store(getpid(), std::memory_order_release);
  if (crash_handlers) watch_crashes(line->page_, line->keeper_.alarm());
  return line;
}

LifeLine::~LifeLine() { close(); }

void LifeLine::close() {
  if (closed_.exchange(true)) return;
  // Also after an init that failed: this rank takes part no more, and its end is nobody's loss.
  leave();
  if (!goes_on_) ignore_crashes();
  in_use.store(false);
}

void LifeLine::enter(uint64_t epoch, bool elastic) {
  epoch_ = epoch;
  elastic_ = elastic;
  if (elastic) page_->be(Presence::kBetween);
}

Status LifeLine::watch(host::EventLoop* loop) { return loop->add(keeper_.news(), this); }
void LifeLine::unwatch(host::EventLoop* loop) { loop->remove(keeper_.news()); }

void LifeLine::on_ready(bool, bool) {
  host::clear_event_fd(keeper_.news());
  news_came_ = true;
}

void LifeLine::begin() {
  use_crash_stack();
  page_->be(Presence::kInEpoch);
  begun_.store(true);
  begun_.notify_all();
}

void LifeLine::leave() {
  if (!goes_on_) return page_->be(Presence::kLeft);
  // Nobody misses who was in no epoch yet.
  if (page_->where() != Presence::kFresh) page_->be(Presence::kBetween);
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

void LifeLine::uses_gpu(std::string_view uuid) {
  BoundedText<48> text;
  text.set(uuid);
  page_->gpu.publish(text);
}

std::optional<LostRank> LifeLine::wait_for_verdict(std::chrono::nanoseconds limit) const {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    if (auto told = lost()) return told;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    // Old news may still be there, and an event loop may take them: so not for long.
    const auto nap = std::min<int64_t>(left.count(), 10);
    pollfd news = {keeper_.news(), POLLIN, 0};
    if (poll(&news, 1, static_cast<int>(nap)) > 0) usleep(1000);
  }
}

std::optional<LostRank> LifeLine::lost() const {
  if (page_->lost.version() == 0) return std::nullopt;
  const LostRank told = page_->lost.read();
  return told.ends(epoch_) ? std::optional(told) : std::nullopt;
}

}  // namespace rueda::life

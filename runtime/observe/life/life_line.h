// LifeLine: a rank's end of what it shares with its agent: it shows that it lives and what it does,
// and hears who was lost.
//
//   agent ── news (eventfd, wakes the coordinator) ──> rank      "look at page.lost"
//   rank  ── alarm (eventfd of all ranks of the host) ──> agent  "look at my page.crash"
//   rank  ── owner (robust futex) ─────────────────────> agent  the kernel tells that it has ended
//
// Owns:    the mapping and copies of the descriptors. One per process at a time.
// Threads: own() and disown() by the background thread, which the futex follows; submitted() and
//          round() by who holds the progress lock; the others by any.
// Failure: own() may fail where the kernel refuses robust lists; then death is known by the
// sockets.
// End:     a rank that leaves in order disowns first; without that its end is a loss.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "collectives/base/status.h"
#include "collectives/host/event_loop.h"
#include "collectives/host/fork_guard.h"
#include "runtime/observe/life/life_page.h"

namespace rueda::life {

// The three descriptors as the launcher tells them: "5,6,7" (page, news, alarm).
struct LifeFds {
  int page = -1, news = -1, alarm = -1;
  static Result<LifeFds> parse(const std::string& text);
};

class LifeLine final : private host::FdHandler {
 public:
  // Null when another runtime of this process has the page.
  static Result<std::unique_ptr<LifeLine>> open(const LifeFds& fds, bool crash_handlers);
  ~LifeLine() override;

  // News wake who sleeps there. Borrowed until unwatch().
  Status watch(host::EventLoop* loop);
  void unwatch(host::EventLoop* loop);

  Status own();
  void disown();
  // Returns once the background thread has tried to own it: from then on its end is known at once.
  void wait_until_owned() const { tried_.wait(false); }

  // now_ns: CLOCK_MONOTONIC, or its coarse form.
  void submitted(std::string_view name, int64_t now_ns);
  void round() { page_->rounds.store(++rounds_, std::memory_order_relaxed); }
  void step_begins() { steps_.fetch_add(1, std::memory_order_relaxed); }

  // What the agent has said last; nothing until a rank was lost.
  std::optional<LostRank> lost() const;
  // The same, waiting this long at most: for who is not served by an event loop yet.
  std::optional<LostRank> wait_for_verdict(std::chrono::milliseconds limit) const;
  // True once after something new was said.
  bool take_news() { return std::exchange(news_came_, false); }

 private:
  // As the kernel reads it when the thread ends (set_robust_list(2)). The list is in private
  // memory.
  struct RobustNode {
    RobustNode* next;
  };
  struct RobustHead {
    RobustNode* list;
    long futex_offset;
    RobustNode* pending;
  };

  LifeLine(LifeMapping page, UniqueFd news, UniqueFd alarm)
      : page_(std::move(page)), news_(std::move(news)), alarm_(std::move(alarm)) {}
  Status take_ownership();
  void on_ready(bool readable, bool writable) override;

  LifeMapping page_;
  host::GuardedFd news_, alarm_;
  RobustHead head_{};
  RobustNode node_{};
  void* earlier_head_ = nullptr;  // the C library's, given back
  size_t earlier_size_ = 0;
  bool owned_ = false;
  std::atomic<bool> tried_{false};
  bool news_came_ = false;
  uint64_t rounds_ = 0;
  LastOperation last_;
  std::atomic<uint64_t> steps_{0};
};

}  // namespace rueda::life

// LifeLine: a rank's end of what it shares with its agent, for one epoch: it shows that it lives
// and what it does, and hears who was lost.
//
//   agent ── news (eventfd, wakes the coordinator) ──> rank      "look at page.lost"
//   rank  ── alarm (eventfd of all ranks of the host) ──> agent  "look at my page.crash"
//   rank  ── owner (robust futex) ─────────────────────> agent  the kernel tells that it has ended
//
// What lasts longer is the LifeKeeper's. One per process at a time.
// Threads: begin() and leave() by the background thread; submitted() and round() by who holds the
// progress lock; the others by any, uses_gpu() by one at a time.
// End:     a rank that leaves in order says so first; without that its end is a loss. Between two
// epochs it is one too (goes_on).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "collectives/base/status.h"
#include "collectives/host/event_loop.h"
#include "runtime/observe/life/life_keeper.h"

namespace rueda::life {

class LifeLine final : private host::FdHandler {
 public:
  // Null when another runtime of this process has the page.
  static Result<std::unique_ptr<LifeLine>> open(const LifeFds& fds, bool crash_handlers);
  ~LifeLine() override;

  // News wake who sleeps there. Borrowed until unwatch().
  Status watch(host::EventLoop* loop);
  void unwatch(host::EventLoop* loop);

  // Before this process meets the others of an epoch: verdicts of earlier ones concern nobody here.
  // elastic: its end is a loss from now on.
  void enter(uint64_t epoch, bool elastic);
  // A newcomer waits to be let in: its end is a loss to who lets it in.
  void is_ready() { page_->be(Presence::kBetween); }
  void begin();
  void leave();
  // Nothing is shown any more, and another one may be opened; what was said can still be read.
  void close();
  // What follows is the next epoch, and no end.
  void goes_on() { goes_on_ = true; }
  // Returns once the background thread has begun: from then on its end is known at once.
  void wait_until_begun() const { begun_.wait(false); }

  // now_ns: CLOCK_MONOTONIC, or its coarse form.
  void submitted(std::string_view name, int64_t now_ns);
  // The UUID of this rank's GPU. Once, before anything is done there.
  void uses_gpu(std::string_view uuid);
  uint64_t epoch() const { return epoch_; }
  void round() { page_->rounds.store(++rounds_, std::memory_order_relaxed); }
  // Where waiting threads show it (LifePage).
  std::atomic<int64_t>* blocked_since() { return &page_->blocked_since; }
  std::atomic<int64_t>* blocked_ns() { return &page_->blocked_ns; }
  void step_begins() { steps_.fetch_add(1, std::memory_order_relaxed); }

  // What the agent has said last that ends this epoch; nothing until a rank was lost.
  std::optional<LostRank> lost() const;
  // The same, waiting this long at most: for who is not served by an event loop yet.
  std::optional<LostRank> wait_for_verdict(std::chrono::nanoseconds limit) const;
  // LifePage::announced, as it is now.
  uint64_t announced() const { return page_->announced.load(std::memory_order_acquire); }
  // A rank has ended with success: from now on a loss ends the job.
  bool job_finishes() const { return (announced() & LifePage::kFinishing) != 0; }
  // The job goes on after a loss.
  bool elastic() const { return elastic_; }
  // True once after something new was said.
  bool take_news() { return std::exchange(news_came_, false); }

 private:
  explicit LifeLine(LifeKeeper& keeper) : keeper_(keeper), page_(keeper.page()) {}
  void on_ready(bool readable, bool writable) override;

  LifeKeeper& keeper_;
  LifePage* const page_;
  uint64_t epoch_ = 0;
  bool elastic_ = false;
  std::atomic<bool> begun_{false}, goes_on_{false}, closed_{false};
  bool news_came_ = false;
  uint64_t rounds_ = 0;
  LastOperation last_;
  std::atomic<uint64_t> steps_{0};
};

}  // namespace rueda::life

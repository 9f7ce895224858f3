// Coordinator: the one thread of a rank that agrees with the others and runs what was agreed.
//
//   users --submissions--> step() --> Negotiator --agreed batches--> BatchRunner --> Works end
//                                      |      ^
//                                      v      |  control messages
//                                     transport
//
// step() never blocks; the Driver calls it from one thread at a time, until there is nothing to do.
// No cycle, no polling.
//
// States:   running -> leaving (shutdown was asked: waits for the root's answer, ends what has
// begun) -> ended
//           running -> broken  (a peer was lost or an operation failed: everything pending got the
//           verdict) -> ended
// Threads:  who has the baton. Ownership: borrows the world; shares the queue with the user's
// threads.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/base/config.h"
#include "runtime/batch_runner.h"
#include "runtime/late_ranks.h"
#include "runtime/plan/plan_runner.h"
#include "runtime/bootstrap/world.h"
#include "runtime/negotiation/negotiator.h"
#include "runtime/point_to_point.h"
#include "runtime/prepared.h"
#include "runtime/submission_queue.h"
#include "runtime/timeline/recorder.h"

namespace rueda::runtime {

// Read by other threads while the coordinator counts.
struct Counters {
  std::atomic<int64_t> batches{0};
  std::atomic<int64_t> tensors{0};
  std::atomic<int64_t> fused_tensors{0};
  std::atomic<int64_t> cached_tensors{0};
  std::atomic<int64_t> control_messages{0};
  std::atomic<int64_t> bytes_reduced{0};
  std::atomic<int64_t> shm_bytes{0};
  std::atomic<int64_t> tcp_bytes{0};
  std::atomic<int64_t> bytes_in_place{0};
  std::atomic<int64_t> bytes_pulled{0};
  std::atomic<int64_t> planned_batches{0};  // ran without a message
  std::atomic<int64_t> plans{0};            // frozen
  std::atomic<int64_t> revocations{0};      // plans given up
  std::atomic<int64_t> wakeups{0};          // of the background thread
};

class Coordinator : private negotiation::Effects, private negotiation::Arrivals {
 public:
  // blame (may be empty): told once, from the coordinator's thread, when something ends because of
  // another rank, before any work hears of it: the launcher then knows that this rank is not the
  // culprit.
  // recorder, blocked: borrowed.
  Coordinator(const Config& config, bootstrap::World* world, std::shared_ptr<SubmissionQueue> queue,
              timeline::Recorder* recorder, const BlockedClock* blocked, Counters* counters,
              std::function<void(const std::string&)> blame = {});

  // One round without blocking. True if anything moved. Once ended no work is pending and no caller
  // memory will be touched.
  bool step();
  // The part of a round that a small planned collective needs, and now and then a whole one.
  bool advance();
  // Claimed operations: one, or those in the queue.
  void take(Prepared* prepared);
  bool take_prepared();
  // Something is under way whose news peers tell by the lane's bell.
  bool waits_for_lanes() const { return communicator_.waits_for_lanes(); }
  // The last round moved nothing. Until then the next one may have something to send.
  bool quiet() const { return quiet_; }
  void look_again() { quiet_ = false; }
  // Nobody who leaves may forget this: something is to be done before the background thread, which
  // sleeps until wakes_at, would do it.
  bool needs_thread(std::chrono::steady_clock::time_point wakes_at);
  // How long there is nothing to do unless somebody rings; negative: for ever.
  std::chrono::nanoseconds nap() const;
  void count();
  bool ended() const { return state_ == State::kEnded; }
  // How long this rank's threads slept until another came, by rank.
  std::vector<wire::Waited> waited() const { return late_.totals(); }
  // From any thread: leave the job in order.
  void request_shutdown();

 private:
  enum class State { kRunning, kLeaving, kBroken, kEnded };
  using Time = std::chrono::steady_clock::time_point;

  // ---- Effects: what the agreement asks for. A ticket is a Pending in tickets_.
  void send_control(Rank to, const std::string& message) override;
  void launch(const wire::Response& batch, const std::vector<Ticket>& tickets) override;
  void finish(Ticket ticket, const Status& status) override;
  void note(Ticket ticket, const std::string& text) override;
  bool may_hold(Ticket ticket) override;
  void blame(const std::string& text) override;
  void warn(const std::string& text) override;
  void give_up(const Status& verdict) override;

  // ---- Arrivals: what the root hears
  void arrived(const wire::Request& request, Rank rank, Time now) override;
  void complete(Rank rank, Time before, Time now) override;

  void name_straggler(const Stragglers::Finding& finding);
  bool take_submissions(Time now);
  void take(Submission submission);
  Pending take_back(Ticket ticket);
  void complete(Ticket ticket);
  void hold(Prepared* prepared);
  void unhold(Prepared* prepared);
  void try_pull();
  void look_for_pull();
  void handle_peer_end(Rank peer, const Status& status);
  void finish(Submission& submission, const Status& status);
  void break_down(const Status& verdict);
  bool leave();
  void end();

  Config config_;
  bootstrap::World* world_;
  std::shared_ptr<SubmissionQueue> queue_;
  timeline::Recorder* recorder_;
  LateRanks late_;
  Counters* counters_;
  std::function<void(const std::string&)> blame_;
  communicator::NativeCommunicator communicator_;
  BatchRunner runner_;
  PointToPoint point_to_point_;
  std::unique_ptr<PlanRunner> plan_runner_;  // where all ranks share memory
  negotiation::Negotiator negotiator_;
  // Submitted and not yet answered: what the negotiator's tickets point to.
  std::unordered_map<Ticket, std::unique_ptr<Pending>> tickets_;

  // Prepared operations that may be held back, for threads that block on them.
  std::vector<Prepared*> held_;
  std::vector<uint32_t> blocked_slots_;  // of those; kept for its memory
  uint32_t glances_ = 0;
  uint64_t round_ = 0;
  uint64_t marked_round_ = 0;  // by the timeline's cycle mark
  bool pull_known_ = false;  // the root: every rank has said whether it can
  // A thread waits for what was just taken: what it had submitted before may still be in the queue.
  bool blocked_already_ = false;

  State state_ = State::kRunning;
  bool quiet_ = true;
  // As of the last round: it changes in rounds only.
  bool root_deadline_known_ = false;
  std::optional<Time> root_deadline_;
  Status verdict_;
  bool goodbye_said_ = false;
  Time leave_deadline_{};
  std::atomic<bool> shutdown_requested_{false};
};

}  // namespace rueda::runtime

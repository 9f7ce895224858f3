// Coordinator: the one thread of a rank that agrees with the others and runs what was agreed.
//
//            submissions          requests                    responses             batches
//   users ---------------> step() ---------> root rank (Root) ---------> every rank --------->
//   BatchRunner -> Work ends
//
// step() never blocks; run() calls it until there is nothing to do and then sleeps in the transport
// until a submission, a peer or a deadline wakes it. No cycle, no polling.
//
// States:   running -> leaving (shutdown was asked: waits for the root's answer, ends what has
// begun) -> ended
//           running -> broken  (a peer was lost or an operation failed: everything pending got the
//           verdict) -> ended
// Threads:  one runs it. Ownership: borrows the world; shares the queue with the user's threads.
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
#include "runtime/bootstrap/world.h"
#include "runtime/negotiation/response_cache.h"
#include "runtime/negotiation/root.h"
#include "runtime/point_to_point.h"
#include "runtime/submission_queue.h"
#include "runtime/timeline.h"

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
};

class Coordinator {
 public:
  // blame (may be empty): told once, from the coordinator's thread, when something ends because of
  // another rank, before any work hears of it: the launcher then knows that this rank is not the
  // culprit.
  Coordinator(const Config& config, bootstrap::World* world, std::shared_ptr<SubmissionQueue> queue,
              Timeline timeline, Counters* counters,
              std::function<void(const std::string&)> blame = {});

  // Until ended. On return no work is pending and no caller memory will be touched.
  void run();
  // One round without blocking. True if anything moved. (run() and tests.)
  bool step();
  bool ended() const { return state_ == State::kEnded; }
  // From any thread: leave the job in order.
  void request_shutdown();

 private:
  enum class State { kRunning, kLeaving, kBroken, kEnded };
  using Time = std::chrono::steady_clock::time_point;

  bool is_root() const { return world_->rank == kRoot; }
  bool take_submissions();
  void tell_wanted(std::vector<std::string>* wanted);
  void send_requests(wire::RequestList list);
  bool publish_responses();
  void tell_everyone(wire::ResponseList list);
  void handle_control(Rank peer, std::string_view message);
  void handle_responses(const wire::ResponseList& list);
  void handle_response(const wire::Response& response);
  void handle_stall(const wire::Stall& stall);
  void handle_peer_end(Rank peer, const Status& status);
  bool check_stalls();
  void finish(Submission& submission, const Status& status);
  void fail_pending(const Status& status);
  void blame(const std::string& text);
  void root_has_left();
  void break_down(const Status& verdict);
  bool leave();
  void end();
  std::chrono::nanoseconds nap() const;
  void count();

  static constexpr Rank kRoot = 0;

  Config config_;
  bootstrap::World* world_;
  std::shared_ptr<SubmissionQueue> queue_;
  Timeline timeline_;
  Counters* counters_;
  std::function<void(const std::string&)> blame_;
  communicator::NativeCommunicator communicator_;
  BatchRunner runner_;
  PointToPoint point_to_point_;
  negotiation::ResponseCache cache_;
  std::unique_ptr<negotiation::Root> root_;  // on the root rank only

  State state_ = State::kRunning;
  Status verdict_;
  bool root_left_ = false;
  bool leave_sent_ = false;
  bool goodbye_said_ = false;
  Time leave_deadline_{};
  std::atomic<bool> shutdown_requested_{false};

  // Submitted, not yet answered, by wire name.
  std::unordered_map<std::string, Pending> pending_;
  // By name, once cached: may the root hold it back for the rest of its batch?
  std::unordered_map<std::string, bool> has_company_;
};

}  // namespace rueda::runtime

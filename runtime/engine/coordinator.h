// Coordinator: the one thread of a rank that agrees with the others and runs what was agreed.
//
//   users --requests--> step() --> GroupEngine of their process set --> requests end
//                         |              ^
//                         v              |  control messages, by process set
//                     transport ---------+
//
// step() never blocks; the ProgressEngine calls it from one thread at a time, until there is
// nothing to do. No cycle, no polling.
//
// States:   running -> leaving (shutdown was asked: waits for the root's answer, ends what has
//                               begun) -> ended
//           running -> broken  (a peer was lost or an operation failed: everything pending got the
//                               verdict) -> ended
// Threads:  who holds the progress lock. Ownership: borrows its Parts; shares the queue with the
//           user's threads.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/config.h"
#include "runtime/engine/agents.h"
#include "runtime/engine/device_messages.h"
#include "runtime/engine/finisher.h"
#include "runtime/engine/group_engine.h"
#include "runtime/engine/late_ranks.h"
#include "runtime/engine/ordered_groups.h"
#include "runtime/engine/process_set.h"
#include "runtime/engine/request.h"
#include "runtime/engine/request_queue.h"
#include "runtime/engine/round_mark.h"
#include "runtime/membership/fabric.h"
#include "runtime/membership/host_memory.h"
#include "runtime/membership/membership.h"
#include "runtime/observe/counters/published.h"
#include "runtime/observe/timeline/recorder.h"

namespace rueda::engine {

class Coordinator {
 public:
  // What the runtime owns and this works with.
  struct Parts {
    const membership::Membership* membership;
    membership::Fabric* fabric;
    const membership::HostMemory* memory;
    const Agents* agents;
    std::shared_ptr<nccl::Machine> machine;  // requests have it too
    ProcessSetTable* sets;                   // changed here
    timeline::Recorder* recorder;
    flight::FlightRecorder* flight;
    const BlockedClock* blocked;
    counters::Published* counters;
  };

  Coordinator(const Config& config, std::shared_ptr<RequestQueue> queue, const Parts& parts);

  // Before the first round: process sets that all ranks have from the beginning (Agents).
  Status form_sets(const std::vector<std::vector<int32_t>>& sets);
  // One round without blocking. True if anything moved. Once ended nothing is under way and no
  // caller memory will be touched.
  bool step();
  // The part of a round that a small collective of a plan or an ordered group needs, and now and
  // then a whole one.
  bool advance();
  // Claimed requests: one, or those in the queue.
  void take(Request* request);
  bool take_requests();
  // Something is under way whose news peers tell by the channel's bell.
  bool waits_for_channels() const;
  // The last round moved nothing. Until then the next one may have something to send.
  bool quiet() const { return quiet_; }
  void look_again() { quiet_ = false; }
  // Nobody who leaves may forget this: something is to be done before the background thread, which
  // sleeps until wakes_at, would do it.
  bool needs_thread(std::chrono::steady_clock::time_point wakes_at);
  // Until when there is nothing to do unless somebody rings; max: for ever.
  std::chrono::steady_clock::time_point wakes_at() const;
  // Publishes the counters as they are now.
  void count();
  bool ended() const { return state_ == State::kEnded; }
  // How long this rank's threads slept until another came, by rank.
  std::vector<wire::Waited> waited() const { return late_.totals(); }
  // A loss that this rank alone has seen; the agents' verdict says more and the same to all ranks.
  bool suspects() const { return suspicion_.has_value(); }
  // Who goes on without it waits in vain; how its process ends says whether it is lost.
  bool somebody_left() const { return !left_.empty() || finisher_.missed_somebody(); }
  // Gives everything up if the agents have said that this epoch is over.
  void hear_verdict();
  // From any thread: leave the job in order.
  void request_shutdown();
  // From any thread: what this rank alone knows to have failed ends everything, on all ranks. The
  // first one counts; none does once this rank leaves, of which its peers hear anyway.
  void request_failure(const Status& verdict);

 private:
  enum class State { kRunning, kLeaving, kBroken, kEnded };
  using Time = std::chrono::steady_clock::time_point;

  // What a group has to say after a call.
  void hear(GroupEngine* group);
  void hear_messages();
  void hear_requested_failure();
  void take_ordered(Request* request, Time now);
  LateRanks::Around around(const BlockedClock* blocked);
  void name_straggler(const Stragglers::Finding& finding);
  bool take_all(Time now);
  void on_control(Rank peer, std::string_view message);
  void try_cma();
  void handle_peer_end(Rank peer, const Status& status);
  void break_down(const Status& verdict);
  // peers_know: it is the agents' verdict, which all ranks hear.
  void end_everything(const Status& verdict, bool peers_know = false);
  bool look_at_suspicion(Time now);
  bool leave();
  bool uses_gpu() const;
  bool gpus_are_done() const;
  void end();
  template <typename Deadline>
  std::optional<Time> earliest(Deadline of) const;
  GroupEngine& global() const { return *groups_.front(); }

  // coordinator_sets.cc
  void begin_change(Request* request);
  void take_agreed(GroupEngine::AgreedChange change);
  bool advance_change(Time now);
  void add_set(Time now);
  void remove_set(Time now);
  void ask_for_end();
  void end_change(const Status& status);
  void open_group(const ProcessSetPtr& set, Time now);
  void close_group(const ProcessSetPtr& set);

  Config config_;
  std::shared_ptr<RequestQueue> queue_;
  const membership::Membership& membership_;
  membership::Fabric& fabric_;
  const membership::HostMemory& memory_;
  const Agents& agents_;
  const std::shared_ptr<nccl::Machine> machine_;
  ProcessSetTable* sets_;
  timeline::Recorder* recorder_;
  flight::FlightRecorder* flight_;
  LateRanks late_;
  counters::Published* counters_;
  Finisher finisher_;
  RoundMark round_mark_;
  // Of the process sets that this rank is a member of; all ranks' first. Changes between rounds.
  std::vector<std::unique_ptr<GroupEngine>> groups_;
  counters::Values past_;           // of groups that are no more
  DeviceMessages device_messages_;  // before those that borrow it
  OrderedGroups ordered_;

  // The change of the process sets under way: one at a time, which the others wait for by its name.
  struct Change {
    enum class Stage { kAsked, kAgreed, kLeaving, kEnding, kEnded };
    Stage stage = Stage::kAsked;
    Request* request = nullptr;      // from kAgreed on
    ProcessSetPtr set;               // that is removed
    std::optional<size_t> reserved;  // channels, for one that is added
    std::optional<uint64_t> split;   // its place among the calls on GPUs, where there are some
  };
  std::optional<Change> change_;
  // Messages of process sets that are not known here yet.
  struct Early {
    uint32_t serial = 0;
    Rank peer = 0;
    std::string message;
  };
  std::vector<Early> early_;
  size_t early_bytes_ = 0;
  uint32_t newest_serial_ = 0;
  std::vector<Rank> left_;  // peers that have said goodbye
  int ended_peers_ = 0;     // those, also later than this rank, and the lost ones

  uint32_t glances_ = 0;
  // A thread waits for what was just taken: what it had submitted before may still be in the queue.
  bool blocked_already_ = false;

  State state_ = State::kRunning;
  bool quiet_ = true;
  // As of the last round: it changes in rounds only.
  bool root_deadline_known_ = false;
  std::optional<Time> root_deadline_;
  Status verdict_;
  std::optional<Status> suspicion_;
  Time suspicion_ends_{};
  bool goodbye_said_ = false;
  Time leave_deadline_{};
  std::atomic<bool> shutdown_requested_{false};
  std::atomic<bool> failure_requested_{false};
  std::mutex failure_mutex_;
  Status requested_failure_;
};

}  // namespace rueda::engine

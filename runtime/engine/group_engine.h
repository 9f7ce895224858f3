// GroupEngine: what one process set has for itself on one of its members: its agreement, its step
// plan, its collectives. A group that waits holds nothing that another needs.
//
//   Coordinator --requests----> GroupEngine --events---> Negotiator
//               --messages---->     |  ^    <--actions--
//               --time-------->     |  +------------------------------ ends -----------+
//               <--News--------     +--agreed batches, the step plan's--> Executor ---+--> requests
//
// Life:      open -> leaving -> left. Leaving: this rank takes part no more, waits for the set's
//            root and ends what has begun
// Threads:   who holds the progress lock. Ownership: borrows what groups share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collectives/algorithms/native_communicator.h"
#include "collectives/base/config.h"
#include "collectives/nccl/device_communicator.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/finisher.h"
#include "runtime/engine/late_ranks.h"
#include "runtime/engine/process_set.h"
#include "runtime/engine/request.h"
#include "runtime/engine/round_mark.h"
#include "runtime/membership/fabric.h"
#include "runtime/membership/host_memory.h"
#include "runtime/membership/membership.h"
#include "runtime/negotiation/negotiator.h"
#include "runtime/observe/counters/counters.h"
#include "runtime/observe/flight/flight_recorder.h"
#include "runtime/observe/timeline/recorder.h"

namespace rueda::engine {

class GroupEngine {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // What the groups of a rank share.
  struct Shared {
    const membership::Membership* membership;
    membership::Fabric* fabric;
    const membership::HostMemory* memory;
    std::shared_ptr<nccl::Machine> machine;
    RequestQueue* queue;
    Finisher* finisher;
    timeline::Recorder* recorder;
    RoundMark* round_mark;
    flight::FlightRecorder* flight;
    LateRanks* late;
  };

  // All ranks have agreed on this change of the process sets.
  struct AgreedChange {
    Request* request = nullptr;
    std::optional<uint64_t> split;  // its place among the calls on GPUs, where there are some
  };
  // What a call has brought that concerns more than the group.
  struct News {
    std::optional<Status> fatal;  // the job cannot go on: everything ends with this
    std::optional<AgreedChange> change;
    std::optional<Status> change_failed;  // the ranks have not agreed on one
    // A thread waits already for what was just taken: what it had submitted before may still be in
    // the queue.
    bool blocked_already = false;
  };

  // set: this rank is a member.
  GroupEngine(const Config& config, const Shared& shared, ProcessSetPtr set);

  const ProcessSetPtr& set() const { return set_; }

  // To be asked for after each of the calls below.
  bool has_news() const { return has_news_; }
  News take_news();

  // ---- operations
  // A claimed one. True: there is something to do in the next round.
  bool take(Request* request, Time now);
  // A round of taking: look for blocked threads first, then take, then tell the others.
  void look_for_blocked();
  bool tell(Time now);

  // ---- news from others
  void on_message(Rank from, std::string_view message, Time now);
  void on_peer_left(Rank peer, Time now);
  // One round. True if anything moved.
  bool step(Time now);
  // A small planned collective is under way, and its part of a round.
  bool plan_is_busy() const { return !executor_.plan_is_idle(); }
  bool advance_plan() { return executor_.advance_plan(); }
  // No batch is under way and the plan holds nothing: nobody waits for this group's channels, and
  // its plan has no deadline.
  bool is_at_rest() const { return executor_.idle() && !negotiator_.plan_holds(); }
  bool waits_for_channels() const {
    return communicator_.waits_for_channels() || planned_.waits_for_channels();
  }
  // As the negotiator's.
  std::optional<Time> next_deadline() const { return negotiator_.next_deadline(finished()); }
  std::optional<Time> root_deadline() const { return negotiator_.root_deadline(); }
  std::optional<Time> plan_deadline() const { return negotiator_.plan_deadline(finished()); }

  // ---- process sets on GPUs: this one's NCCL communicator is split for another set's
  // What was reserved where all ranks were at the same point of what this set agrees on; part is
  // null for ranks that are no members.
  void split(uint64_t place, const ProcessSet& set, GroupEngine* part);
  void skip_split(uint64_t place) { executor_.run(device_communicator_.skip(place)); }

  // ---- the end
  void leave(Time now);
  // Nothing more will be agreed on.
  bool root_left() const { return negotiator_.root_left(); }
  // A send or receive of the set of all ranks.
  void start_message(Request* message) { executor_.start(message); }
  void fail_messages(const Status& status) { executor_.fail_messages(status); }
  // Ends what has not been agreed on. True if there was anything.
  bool drop(const Status& status);
  // What was agreed on has ended here.
  bool is_idle() const {
    return executor_.idle() && device_communicator_.idle() && planned_device_.idle();
  }
  bool uses_gpu() const { return device_communicator_.uses_gpu() || planned_device_.uses_gpu(); }
  // The verdict ends everything; no memory is touched any more.
  void break_down(const Status& verdict);
  // Adds what this group counts.
  void add_to(counters::Values* totals) const;

 private:
  // The negotiator's actions, group_actions.cc. A handle is a Request.
  bool perform();
  void perform(negotiation::action::Send& send);
  void perform(negotiation::action::Launch& launch);
  void perform(negotiation::action::Finish& finish);
  void perform(negotiation::action::Asked& asked);
  void perform(negotiation::action::Hold& hold);
  void perform(negotiation::action::Note& note);
  void perform(negotiation::action::Blame& blame);
  void perform(negotiation::action::Warn& warn);
  void perform(negotiation::action::AskSites& ask);
  void perform(negotiation::action::Arrived& arrived);
  void perform(negotiation::action::GiveUp& end);
  void perform(negotiation::action::BeginPlan& begin);
  void perform(negotiation::action::EnterBatch& enter);
  void perform(negotiation::action::RevokePlan& revoke);
  void perform(negotiation::action::EndPlan& end);

  bool refuse_capture(Request* request);
  Request* take_back(plan::OpHandle handle);
  void finish(plan::OpHandle handle, const Status& status);
  void complete(plan::OpHandle handle, const Status& status);
  void finish_join(const Status& status);
  void agree_on_change(Request* change);
  void fail(const Status& verdict);
  void hold(Request* request);
  void unhold(Request* request);
  void look_for_cma();
  plan::Progress progress();
  void hear_last_word(Rank place, std::string_view message);
  uint64_t finished() const { return executor_.finished(); }

  const Shared shared_;
  const ProcessSetPtr set_;
  LateRanks::Group late_;
  const std::vector<std::shared_ptr<host::Arena>> arenas_;  // by place; empty: no channels
  algorithms::NativeCommunicator communicator_;
  // The step plan's: its order and that of what is negotiated beside it do not meet.
  algorithms::NativeCommunicator planned_;
  nccl::DeviceCommunicator device_communicator_;
  nccl::DeviceCommunicator planned_device_;
  Executor executor_;
  negotiation::Negotiator negotiator_;
  negotiation::Actions doing_;                       // being performed; kept for its memory
  std::vector<std::optional<uint64_t>> last_words_;  // of the plan in force, by place
  // Not yet answered, and a thread that blocks on one may hold it up.
  std::vector<Request*> held_;
  bool any_blocked_ = false;  // some of these have been seen to be waited for
  Request* join_ = nullptr;   // comes behind what was started before and waits for its name
  bool leaving_ = false;
  bool cma_known_ = false;  // the set's root: every member has said whether it can
  News news_;
  bool has_news_ = false;
};

}  // namespace rueda::engine

// GroupEngine: what one process set has for itself on one of its members: its agreement, its step
// plan, its collectives. A group that waits holds nothing that another needs.
//
//   Coordinator --operations--> GroupEngine --> Negotiator --agreed batches--> BatchRunner --> Works end
//               --messages---->    |           |
//               --time-------->    |           +--the step plan's-------> PlanRunner ---> Works end
//
// Life:      open -> leaving (this rank takes part no more: waits for the set's root, ends what has
//            begun) -> left
// Threads:   who holds the progress lock. Ownership: borrows its owner, the world, recorders and late ranks.
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
#include "runtime/engine/batch_runner.h"
#include "runtime/engine/late_ranks.h"
#include "runtime/engine/plan_runner.h"
#include "runtime/engine/prepared.h"
#include "runtime/engine/process_set.h"
#include "runtime/membership/world.h"
#include "runtime/negotiation/negotiator.h"
#include "runtime/observe/counters/counters.h"
#include "runtime/observe/flight/flight_recorder.h"
#include "runtime/observe/timeline/recorder.h"

namespace rueda::engine {

class GroupEngine final : private negotiation::Effects, private negotiation::Arrivals {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // What a group asks of the coordinator.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Ends a work and frees its name.
    virtual void finish(Submission& submission, const Status& status) = 0;
    // All ranks have agreed on this change of the process sets. To be made later, not from here.
    virtual void change_sets(Pending change) = 0;
    virtual void blame(const std::string& text) = 0;
    // The job cannot go on: everything ends with this.
    virtual void give_up(const Status& verdict) = 0;
    // There is something to do in the next round.
    virtual void stir() = 0;
    // A thread waits already for what was just taken: what it had submitted before may still be in
    // the queue.
    virtual void blocked_already() = 0;
    // Submissions of this set wait for their names.
    virtual bool names_are_waited_for(const ProcessSet& set) = 0;
    // One that was negotiated.
    virtual void batch_begins() = 0;
  };

  // set: this rank is a member.
  GroupEngine(const Config& config, membership::World* world, timeline::Recorder* recorder,
              flight::FlightRecorder* flight, LateRanks* late, Owner* owner, ProcessSetPtr set);

  const ProcessSetPtr& set() const { return set_; }

  // ---- operations
  void take(Submission submission);
  // Taken as it is, or, where it has to be negotiated with its name, by take(Submission).
  void take(Prepared* prepared, Time now);
  // A round of taking: look for blocked threads first, then take, then tell the others.
  void look_for_blocked();
  bool tell(Time now);

  // ---- news
  void on_message(Rank from, std::string_view message, Time now);
  void on_peer_left(Rank peer, Time now);
  // One round. True if anything moved.
  bool step(Time now);
  // A small planned collective is under way, and its part of a round.
  bool plan_is_busy() const { return plan_runner_ && !plan_runner_->idle(); }
  bool advance_plan() { return plan_runner_->advance(); }
  bool waits_for_channels() const { return communicator_.waits_for_channels(); }
  // As the negotiator's.
  std::optional<Time> next_deadline() const { return negotiator_.next_deadline(); }
  std::optional<Time> root_deadline() const { return negotiator_.root_deadline(); }
  std::optional<Time> plan_deadline() const { return negotiator_.plan_deadline(); }

  // ---- process sets on GPUs: this one's NCCL communicator is split for another set's
  // Where all ranks are at the same point of what this set agrees on. Empty: it used no GPU yet.
  std::optional<uint64_t> reserve_split() { return device_communicator_.reserve(); }
  // What was reserved; part is null for ranks that are no members.
  void split(uint64_t place, const ProcessSet& set, GroupEngine* part);
  void skip_split(uint64_t place) { runner_.run(device_communicator_.skip(place)); }

  // ---- the end
  void leave(Time now);
  // Nothing more will be agreed on.
  bool root_left() const { return negotiator_.root_left(); }
  // Ends what has not been agreed on. True if there was anything.
  bool drop(const Status& status);
  // What was agreed on has ended here.
  bool is_idle() const {
    return runner_.idle() && device_communicator_.idle() && planned_device_.idle() &&
           (!plan_runner_ || plan_runner_->idle());
  }
  bool uses_gpu() const { return device_communicator_.uses_gpu() || planned_device_.uses_gpu(); }
  // The verdict ends everything; no memory is touched any more.
  void break_down(const Status& verdict);
  // Adds what this group counts.
  void add_to(counters::Values* totals) const;

 private:
  // ---- Effects. A ticket is a Pending in tickets_, or a prepared operation's own.
  void send_control(Rank to, const std::string& message) override;
  void launch(const wire::Response& batch, const std::vector<plan::Ticket>& tickets) override;
  plan::Ticket neutral(const wire::Request& request) override;
  void finish(plan::Ticket ticket, const Status& status) override;
  std::string explanation() override { return flight_->mail(); }
  std::string call_site(plan::Ticket ticket) override;
  void asked(plan::Ticket ticket, bool by_number) override;
  void note(plan::Ticket ticket, const std::string& text) override;
  bool may_hold(plan::Ticket ticket) override;
  void blame(const std::string& text) override;
  void warn(const std::string& text) override;
  void give_up(const Status& verdict) override { owner_->give_up(verdict); }

  // ---- Arrivals: what the set's root hears
  void arrived(const wire::Request& request, Rank place, Time now) override;
  void complete(Rank place, Time before, Time now) override;

  bool refuse_capture(Submission* submission);
  plan::Ticket keep(Submission submission);
  void finish_join(const Status& status);
  Pending take_back(plan::Ticket ticket);
  void complete(plan::Ticket ticket, const Status& status);
  void hold(Prepared* prepared);
  void unhold(Prepared* prepared);
  void look_for_cma();

  membership::World* world_;
  timeline::Recorder* recorder_;
  flight::FlightRecorder* flight_;
  Owner* owner_;
  const ProcessSetPtr set_;
  LateRanks::Group late_;
  const std::vector<std::shared_ptr<host::Arena>> arenas_;  // by place; empty: no channels
  algorithms::NativeCommunicator communicator_;
  nccl::DeviceCommunicator device_communicator_;
  // The step plan's: its order and that of what is negotiated beside it do not meet.
  nccl::DeviceCommunicator planned_device_;
  BatchRunner runner_;
  std::unique_ptr<PlanRunner> plan_runner_;  // where all members share memory
  negotiation::Negotiator negotiator_;
  // Submitted and not yet answered: what the negotiator's tickets point to.
  std::unordered_map<plan::Ticket, std::unique_ptr<Pending>> tickets_;

  // Prepared operations that may be held back, for threads that block on them.
  std::vector<Prepared*> held_;
  std::vector<uint32_t> blocked_ids_;  // of those; kept for its memory
  std::vector<std::string> blocked_;   // names of others
  std::optional<Submission> join_;  // comes behind what was submitted before and waits for its name
  bool leaving_ = false;
  bool cma_known_ = false;  // the set's root: every member has said whether it can
};

}  // namespace rueda::engine

// Negotiator: a rank's side of the agreement, and on the root rank the root's too. Says what runs
// and in which order; moves no tensor.
//
//   Submit, Awaited, Flush ---> +------------+ ---> Send         request lists, response lists
//   Message, PeerLeft      ---> | Negotiator | ---> Launch       one agreed batch, in order
//   Tick, Sites, Withdrawn ---> |  (+ Root,  | ---> Finish       an operation that does not run
//   Leave, Drop, BreakDown ---> |  Follower) | ---> EnterBatch   the next batch of the step plan
//                               +------------+ ---> GiveUp       the job cannot go on
//        events.h                                    actions.h
//
// Every handle that came in with Submit goes out exactly once: in Launch, in Finish, or in
// EnterBatch; from there it may come back by Withdrawn.
//
// A value machine: on() takes an event and appends actions, in the order in which they are to be
// done; nothing is called back. No transport, no memory of tensors, no threads; time comes with the
// events. So the same code runs in the coordinator and in a simulated network.
// Threads: one at a time. Failure: GiveUp with the reason; from then on nothing is said to anybody,
// and Drop or BreakDown give every handle back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/base/config.h"
#include "runtime/negotiation/actions.h"
#include "runtime/negotiation/events.h"
#include "runtime/negotiation/response_cache.h"
#include "runtime/negotiation/root.h"
#include "runtime/plan/follower.h"

namespace rueda::negotiation {

// Who takes part. Ranks are places among the members, here and in all of the agreement.
struct GroupInfo {
  Rank rank = 0;
  Rank size = 1;
  uint64_t epoch = 0;
  Members members;
  uint32_t process_set = 0;  // as messages know it
  bool plans = false;        // step plans can be run; the same on all ranks
};

class Negotiator {
 public:
  static constexpr Rank kRoot = 0;

  Negotiator(const Config& config, GroupInfo group);

  // What is to be done; the owner takes it out. Keeps its memory: a step in a plan allocates
  // nothing.
  Actions& actions() { return actions_; }

  void on(const event::Submit& submit);
  void on(const event::SubmitCached& submit);
  void on(const event::Awaited& awaited);
  void on(const event::Flush& flush);
  void on(const event::Leave& leave);
  void on(const event::Message& message);
  void on(const event::PeerLeft& left);
  void on(const event::Tick& tick);
  void on(const event::Sites& sites);
  void on(const event::Withdrawn& withdrawn);
  void on(const event::Drop& drop);
  void on(const event::BreakDown& end);
  void on(const event::CmaAvailable& cma);
  void on(const event::Measured& measured);
  void on(const event::Retune&) { revoke("it is tuned anew", true); }

  // When the next Tick may bring something without another event; finished: of plan::Progress, now.
  std::optional<Time> next_deadline(uint64_t finished) const;
  // Its parts: what the root waits for, which changes with what the rounds bring, and the step
  // plan.
  std::optional<Time> root_deadline() const;
  std::optional<Time> plan_deadline(uint64_t finished) const;
  // The next Tick looks for tensors that wait too long.
  bool stalls_due(Time now) const { return root_ != nullptr && root_->stalls_due(now); }

  // The number of this request, once it has been agreed on. It is never another's, but may be
  // forgotten.
  std::optional<RequestId> id_of(const wire::Request& request) const {
    return cache_.find(request);
  }
  bool knows(RequestId id) const { return cache_.knows(id); }
  // Of how many tensors it knows the ids.
  size_t known_tensors() const { return cache_.size(); }
  // No operation can be agreed on any more: the root has left, or has answered this rank's leaving.
  bool root_left() const { return root_left_ && !planning(); }
  // No handle waits, but in batches entered.
  bool idle() const { return pending_.empty() && !planning(); }
  // A step plan is in force, or this rank is on its way back from it.
  // The plan waits here for the rest of a batch, or for its turn.
  bool plan_holds() const { return follower_ && follower_->holds_any(); }
  bool planning() const { return follower_ && follower_->following(); }
  // The request is a member of the step plan in force.
  bool follows(const wire::Request& request) const {
    const auto id = id_of(request);
    return id && planning() && !follower_->revoked() && follower_->has(*id);
  }

  // Submissions that went as a number, or to the step plan.
  int64_t cached_submissions() const { return cached_submissions_; }
  int64_t planned_submissions() const { return planned_submissions_; }
  // Tensors that it knew and has forgotten, for others.
  int64_t evictions() const { return static_cast<int64_t>(evictions_); }
  int64_t plans() const { return plans_; }
  int64_t revocations() const { return revocations_; }

 private:
  struct Unanswered {
    OpHandle handle;
    const wire::Request* request = nullptr;
    RequestPtr kept;            // the same, if it is the cache's
    bool awaited_told = false;  // the root knows that a thread waits
  };

  template <typename What>
  void act(What what) {
    actions_.emplace_back(std::move(what));
  }
  bool is_root() const { return root_ != nullptr; }
  void give_up(const Status& verdict);
  void tell(Rank to, std::string message);
  void send(wire::RequestList list, Time now);
  Status hear_requests(Rank from, const wire::RequestList& list, Time now);
  void publish(Time now);
  void check_stalls(const event::Tick& tick);
  void tell_everyone(wire::ResponseList list, Time now);
  void handle_responses(wire::ResponseList list, Time now);
  void handle_response(wire::Response response);
  void handle_stall(const wire::Stall& stall);
  void ask_sites(const std::vector<std::string>& names);
  void root_has_left(Rank first = kRoot);  // first: who left before it, if not the root
  Status root_is_gone(const char* what) const;
  void refuse(OpHandle handle);
  void negotiate(const wire::Request& request, OpHandle handle);
  void negotiate(RequestId id, OpHandle handle);
  void forget(const std::vector<uint64_t>& evicted);
  void say_leaving(Time now);
  void join(const wire::Request& request, OpHandle handle);
  void drop(const Status& status);

  // negotiator_plan.cc
  void start_plan(const wire::StepPlan& plan, Time now);
  bool move_to_plan(const wire::Request& member, Time now);
  void revoke(const std::string& why, bool at_will = false);
  void revoke_for_blocked();
  void replace_idle_plan(CollectiveKind kind, bool cached);
  void follow(const event::Tick& tick);
  void come_back(Time now);
  void pass_on();

  GroupInfo group_;
  Actions actions_;
  ResponseCache cache_;
  std::unique_ptr<Root> root_;  // on the root rank only

  bool root_left_ = false;
  Rank first_left_ = kRoot;  // who had left before the root
  bool leaving_ = false;
  bool leaving_said_ = false;  // no list follows
  bool joined_ = false;        // until all have
  bool broken_ = false;
  wire::RequestList collected_;
  int64_t cached_submissions_ = 0;
  int64_t planned_submissions_ = 0;
  uint64_t evictions_ = 0;

  std::optional<plan::Follower> follower_;
  std::vector<RequestId>
      blocked_;  // members that threads were seen to wait for since the last flush
  Time next_protocol_check_{};
  bool at_will_ = false;       // this rank revoked although nobody deviated
  uint64_t seen_entered_ = 0;  // by replace_idle_plan
  int beside_ = 0;
  int64_t plans_ = 0;
  int64_t revocations_ = 0;

  // Submitted, not yet answered, by wire name.
  std::unordered_map<std::string, Unanswered> pending_;
  // By name, once cached: may the root hold it back for the rest of its batch?
  std::unordered_map<std::string, bool> has_company_;
};

}  // namespace rueda::negotiation

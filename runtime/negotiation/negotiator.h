// Negotiator: a rank's side of the agreement, and on the root rank the root's too. Says what runs
// and in which order; moves no tensor.
//
//   submit, wanted ---> +------------+ ---> Effects::send_control   (RequestList, ResponseList)
//   on_message     ---> | Negotiator | ---> Effects::launch         one agreed batch, in order
//   on_peer_left   ---> |  (+ Root,  | ---> Effects::finish         a ticket that does not run
//   on_time, leave ---> |  Follower) | ---> PlanChannel::enter         the next batch of the step plan
//                       +------------+ ---> Effects::give_up        the job cannot go on
//
// Every ticket that submit() takes comes back exactly once: in launch(), in finish(), or through
// the channel, to which enter() gives it.
//
// Pure: no transport, no memory of tensors, no threads; time comes from outside. So the same code
// runs in the coordinator and in a simulated network.
// Threads: one at a time. Failure: give_up() is called with the reason; the owner answers with
// drop(). Ownership: borrows the effects.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collectives/base/config.h"
#include "runtime/negotiation/response_cache.h"
#include "runtime/negotiation/root.h"
#include "runtime/plan/follower.h"
#include "runtime/plan/plan_channel.h"

namespace rueda::negotiation {

using plan::Ticket;

// What the agreement does to the world. Called from within the Negotiator's inputs; may call only
// drop() back, from give_up().
class Effects {
 public:
  virtual ~Effects() = default;
  // Messages to one rank arrive in order.
  virtual void send_control(Rank to, const std::string& message) = 0;
  // Run this batch after those launched before; tickets[i] belongs to batch.entries[i]. A join has
  // ended when it is launched.
  virtual void launch(const wire::Response& batch, const std::vector<Ticket>& tickets) = 0;
  // This rank has joined: a ticket of its own for a tensor that the others reduce, to be launched
  // next. It contributes what changes nothing.
  virtual Ticket neutral(const wire::Request& request) = 0;
  // The ticket ends without having run.
  virtual void finish(Ticket ticket, const Status& status) = 0;
  // What the launcher knows of whom everybody waits for; "" for nothing.
  virtual std::string explanation() { return ""; }
  // Where this ticket's operation was called, "train.py:22 in step"; "": not known.
  virtual std::string call_site(Ticket /*ticket*/) { return ""; }
  // It is negotiated, by its cache number or with its whole request.
  virtual void asked(Ticket /*ticket*/, bool /*by_number*/) {}
  // What this ticket waits for, as a text for people.
  virtual void note(Ticket ticket, const std::string& text) = 0;
  // The tensor may be held back for others. True: a thread is blocked on it already. Otherwise the
  // owner calls wanted() as soon as one is. In both cases flush() comes after everything that this
  // thread submitted before, or the batch looks as if it would never be complete.
  virtual bool may_hold(Ticket ticket) = 0;
  // Something ends because of another rank; before any ticket hears of it.
  virtual void blame(const std::string& text) = 0;
  // For the log of the root rank.
  virtual void warn(const std::string& text) = 0;
  // The agreement is damaged beyond repair: end everything, call drop().
  virtual void give_up(const Status& verdict) = 0;
};

// Who takes part. Ranks are places among the members, here and in all of the agreement.
struct GroupInfo {
  Rank rank = 0;
  Rank size = 1;
  uint64_t epoch = 0;
  Members members;
  uint32_t process_set = 0;  // as messages know it
};

class Negotiator {
 public:
  static constexpr Rank kRoot = 0;

  // channel: null: no step plans. The same on all ranks. Borrowed.
  Negotiator(const Config& config, GroupInfo group, Effects* effects,
             plan::PlanChannel* channel = nullptr);

  // request: borrowed until the ticket comes back. A name is submitted once at a time. What is
  // submitted goes out with flush().
  void submit(const wire::Request& request, Ticket ticket, Time now);
  // The same for a tensor that id_of() knows: without its name, and for a member of the step plan
  // without allocation.
  void submit_cached(CacheId id, Ticket ticket, Time now);
  // The number of this request, once it has been agreed on; it stays.
  std::optional<CacheId> id_of(const wire::Request& request) const { return cache_.find(request); }
  // Of how many tensors it knows the numbers.
  size_t known_tensors() const { return cache_.size(); }
  // A thread is blocked on the tensor of this name. Idempotent; unknown names are ignored.
  void wanted(const std::string& name);
  void wanted(CacheId id);
  // Tells the root what was collected. True if there was anything.
  bool flush(Time now);

  void on_message(Rank from, std::string_view message, Time now);
  // The peer has said goodbye.
  void on_peer_left(Rank peer, Time now);
  // Decides and tells what has become due. True if there was anything. Call after the other inputs.
  bool on_time(Time now);
  // When on_time() may have something to do without a new input.
  std::optional<Time> next_deadline() const;
  // Its parts: what the root waits for, which changes with what the rounds bring, and the step
  // plan.
  std::optional<Time> root_deadline() const;
  std::optional<Time> plan_deadline() const;

  // This rank submits no more; on the root rank nothing is agreed on any more.
  void leave(Time now);
  // No operation can be agreed on any more: the root has left, or has answered this rank's leaving.
  bool root_left() const { return root_left_ && !planning(); }
  // Ends every ticket that the channel has not taken.
  void drop(const Status& status);
  // The same, and nothing moves any more: after give_up() or a lost peer.
  void break_down(const Status& verdict);
  // No ticket waits, but in the channel.
  bool idle() const { return pending_.empty() && !planning(); }

  // The root rank: hears when ranks submit. Borrowed.
  void listen(Arrivals* arrivals) {
    if (is_root()) root_->listen(arrivals);
  }
  // The root rank: the plan's protocols are to be chosen anew.
  void retune() { revoke("it is tuned anew", true); }
  // The root rank: protocols of batches. All ranks can read each other's memory; then the owner
  // reports how long the batches took whose Response or PlannedBatch said so.
  void set_cma_available(bool available) {
    if (is_root()) root_->protocols().set_cma_available(available);
  }
  void measured(CollectiveKind kind, int64_t bytes, uint32_t protocol, int64_t ns, Time now) {
    if (is_root()) root_->protocols().measured(kind, bytes, protocol, ns, now);
  }
  // A step plan is in force, or this rank is on its way back from it.
  bool planning() const { return follower_ && follower_->following(); }
  // The request is a member of the step plan in force.
  bool follows(const wire::Request& request) const {
    const auto id = id_of(request);
    return id && planning() && !follower_->revoked() && follower_->has(*id);
  }

  // Submissions that went as a number, or to the step plan.
  int64_t cached_submissions() const { return cached_submissions_; }
  int64_t planned_submissions() const { return planned_submissions_; }
  int64_t plans() const { return plans_; }
  int64_t revocations() const { return revocations_; }

 private:
  struct Pending {
    Ticket ticket = nullptr;
    const wire::Request* request = nullptr;
    bool wanted_told = false;  // the root knows that a thread waits
  };

  bool is_root() const { return root_ != nullptr; }
  void send(wire::RequestList list, Time now);
  bool publish(Time now);
  bool check_stalls(Time now);
  void tell_everyone(wire::ResponseList list, Time now);
  void handle_responses(const wire::ResponseList& list, Time now);
  void handle_response(const wire::Response& response);
  void handle_stall(const wire::Stall& stall);
  void say_where(const std::vector<std::string>& names, Time now);
  void root_has_left(Rank first = kRoot);  // first: who left before it, if not the root
  Status root_is_gone(const char* what) const;
  void refuse(Ticket ticket);
  void negotiate(const wire::Request& request, std::optional<CacheId> id, Ticket ticket);
  void say_leaving(Time now);
  void join(const wire::Request& request, Ticket ticket);

  // negotiator_plan.cc
  void start_plan(const wire::StepPlan& plan, Time now);
  bool move_to_plan(const wire::Request& member, Time now);
  void revoke(const std::string& why, bool at_will = false);
  bool revoke_for_blocked();
  void replace_idle_plan(const wire::Response& response);
  bool follow(Time now);
  void come_back(Time now);

  GroupInfo group_;
  Effects* effects_;
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

  std::optional<plan::Follower> follower_;
  std::vector<CacheId> blocked_;  // members that threads were seen to wait for since the last flush
  Time next_protocol_check_{};
  bool at_will_ = false;       // this rank revoked although nobody deviated
  uint64_t seen_entered_ = 0;  // by replace_idle_plan
  int beside_ = 0;
  int64_t plans_ = 0;
  int64_t revocations_ = 0;

  // Submitted, not yet answered, by wire name.
  std::unordered_map<std::string, Pending> pending_;
  // By name, once cached: may the root hold it back for the rest of its batch?
  std::unordered_map<std::string, bool> has_company_;
};

}  // namespace rueda::negotiation

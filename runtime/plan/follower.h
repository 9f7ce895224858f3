// Follower: one rank's way through the step plan. Counts each batch's members down, enters complete
// batches in the plan's order, and finds its way back to negotiation when the plan is revoked.
//
//           begin                revoke: own deviation,        every rank's last word is there:
//                                or a peer has revoked         M = their minimum
//   (none) --------> following ------------------------> leaving --------------------> finishing
//      ^                                                                                   |
//      |                  all others' handles                           batches < M have   |
//      |                  are given back                                run here: EndPlan  v
//      +----------------------------------------------------------------------------- withdrawing
//
// Why the minimum is right: a batch runs only if every rank has entered it, and a rank's last word
// is never taken back. So batches < M were entered by all, must run and will; batches >= M lack a
// rank and will lack it for ever, so nobody has touched memory for them. They are left where they
// are until the others have ended, and withdrawn all at once.
//
// Pure: events in, actions out (step_plan.h). One thread. Handles that went out in EnterBatch end
// with their batch or come back by on_withdrawn(); all others come back by take_back() or drop().
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/messages.h"
#include "runtime/plan/step_plan.h"

namespace rueda::plan {

using Time = std::chrono::steady_clock::time_point;

class Follower {
 public:
  struct Member {
    RequestId id = 0;
    OpHandle handle;
  };
  // A member of the plan as this rank knows it.
  struct Place {
    RequestId id = 0;
    std::string name;
  };

  // patience: how long a plan may stand still while somebody waits for it.
  Follower(Rank size, std::chrono::nanoseconds patience) : size_(size), patience_(patience) {}

  // What the inputs below have asked for since the list was cleared; the owner clears it. A steady
  // step allocates nothing.
  std::vector<Action>& actions() { return actions_; }

  // A plan is in force; places in the order of its ids. Not while following another.
  void begin(StepPlan plan, const std::vector<Place>& places, Time now);
  bool following() const { return state_ != State::kNone; }
  bool revoked() const { return following() && state_ != State::kFollowing; }
  uint64_t generation() const { return plan_.generation; }
  // What request lists say about the plan (wire::RequestList::plan).
  uint64_t stamp() const { return plan_.generation * 2 - (following() ? 1 : 0); }
  uint64_t batches_entered() const { return entered_; }
  uint64_t batches_in_cycle() const { return plan_.batches.size(); }

  // Is this request of the rank a member of the plan in force?
  bool has(RequestId id) const { return following() && member_of_.count(id) != 0; }
  // Is some request of this name?
  bool has_name(const std::string& name) const { return following() && ids_of_.count(name) != 0; }
  // The request of this name that has a handle which is in no batch entered.
  std::optional<RequestId> held_of(const std::string& name) const;

  // A request became ready. O(1).
  enum class Taken : uint8_t { kNo, kHeld, kEntered };  // it is no member; or is its batch entered?
  Taken on_ready(RequestId id, OpHandle handle, Time now);
  // Has the member a handle that is in no batch entered?
  bool holds(RequestId id) const;
  bool holds_any() const { return held_ != 0; }

  // Leaves the plan, and so do all the others. Idempotent.
  void revoke(const std::string& why);
  const std::string& why() const { return why_; }

  // Looks at how far this rank and its peers have come.
  void on_progress(const Progress& progress, Time now);
  // When on_progress() may find something without a peer's doing; finished: as in Progress, now.
  std::optional<Time> next_deadline(uint64_t finished) const;
  // The answer to EndPlan: this rank is back, see take_back().
  void on_withdrawn(std::span<const OpHandle> handles);
  // What has not run, batch by batch: those that had been entered first.
  std::vector<Member> take_back();
  // Every handle that is in no batch entered, now; the plan is over.
  std::vector<Member> drop();

 private:
  enum class State : uint8_t { kNone, kFollowing, kLeaving, kFinishing, kWithdrawing };
  struct Batch {
    size_t first = 0;  // in members
    size_t size = 0;
    size_t missing = 0;
  };

  void enter_complete();
  void give_back_held(size_t from);
  std::optional<uint64_t> least(const Progress& progress) const;

  Rank size_;
  std::chrono::nanoseconds patience_;
  std::vector<Action> actions_;
  State state_ = State::kNone;
  StepPlan plan_;
  std::vector<Batch> batches_;
  std::vector<OpHandle> handles_;   // by member; once entered they stay until the next round
  std::vector<bool> held_here_;     // by member: its handle is in no batch entered
  std::vector<RequestId> ids_;      // by member
  std::vector<uint32_t> batch_of_;  // by member
  std::vector<uint32_t> next_;      // by member: where the same request comes next in the cycle
  std::unordered_map<RequestId, uint32_t> member_of_;  // the member that its next submission is
  std::unordered_map<std::string, std::vector<RequestId>> ids_of_;
  uint64_t entered_ = 0;     // batches
  size_t cursor_ = 0;        // entered_ mod number of batches
  size_t held_ = 0;          // handles that are in no batch entered
  uint64_t finished_ = 0;    // as of the last on_progress()
  Time moved_{};             // when anything last happened
  uint64_t first_lost_ = 0;  // M
  std::string why_;
  std::vector<Member> back_;
};

}  // namespace rueda::plan

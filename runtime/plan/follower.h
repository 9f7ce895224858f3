// Follower: one rank's way through the step plan. Counts each batch's members down, enters complete
// batches in the plan's order, and finds its way back to negotiation when the plan is revoked.
//
//           begin               revoke: own deviation,        every rank's last word is there:
//                               or a peer has revoked         M = their minimum
//   (none) -------> following ------------------------> leaving -------------------> finishing
//      ^                                                                                 |
//      |   back: batches < M have run, all others' tickets are given back                |
//      +---------------------------------------------------------------------------------+
//
// Why the minimum is right: a batch runs only if every rank has entered it, and a rank's last word
// is never taken back. So batches < M were entered by all, must run and will; batches >= M lack a
// rank and will lack it for ever, so nobody has touched memory for them.
//
// Pure; one thread. Tickets that the channel has taken by enter() end with the channel; all others
// come back by take_back() or drop().
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/plan/plan_channel.h"

namespace rueda::plan {

using CacheId = uint32_t;
using Time = std::chrono::steady_clock::time_point;

class Follower {
 public:
  struct Member {
    CacheId id = 0;
    Ticket ticket = nullptr;
  };

  // channel: borrowed. patience: how long a plan may stand still while somebody waits for it.
  Follower(plan::PlanChannel* channel, Rank size, std::chrono::nanoseconds patience)
      : channel_(channel), size_(size), patience_(patience) {}

  // A plan is in force; requests in the order of its ids. Not while following another.
  void begin(StepPlan plan, const std::vector<const wire::Request*>& requests, Time now);
  bool following() const { return state_ != State::kNone; }
  bool revoked() const { return state_ == State::kLeaving || state_ == State::kFinishing; }
  uint64_t generation() const { return plan_.generation; }
  // What request lists say about the plan (wire::RequestList::plan).
  uint64_t stamp() const { return plan_.generation * 2 - (following() ? 1 : 0); }
  uint64_t batches_entered() const { return entered_; }
  uint64_t batches_in_cycle() const { return plan_.batches.size(); }

  // Is the id a member of the plan in force?
  bool has(CacheId id) const {
    return following() && id < member_of_.size() && member_of_[id] != kNo;
  }
  // Is some id of this name?
  bool has_name(const std::string& name) const { return following() && id_of_.count(name) != 0; }
  std::optional<CacheId> id_of(const std::string& name) const;

  // A member became ready. O(1), no allocation. True: the channel has taken its ticket.
  bool submit(CacheId id, Ticket ticket, Time now);
  // Has the member a ticket that the channel has not taken?
  bool holds(CacheId id) const;

  // Leaves the plan, and so do all the others. Idempotent.
  void revoke(const std::string& why);
  const std::string& why() const { return why_; }

  // Looks at the peers. True once: this rank is back; then take_back().
  bool poll(Time now);
  // When poll() may find something without a peer's doing.
  std::optional<Time> next_deadline() const;
  // What has not run, batch by batch: those that had been entered first.
  std::vector<Member> take_back();
  // Every ticket that the channel has not taken, now; the plan is over.
  std::vector<Member> drop();

 private:
  enum class State : uint8_t { kNone, kFollowing, kLeaving, kFinishing };
  static constexpr uint32_t kNo = UINT32_MAX;
  struct Batch {
    size_t first = 0;  // in members_
    size_t size = 0;
    size_t missing = 0;
  };

  void enter_complete();
  void withdraw();
  std::optional<uint64_t> last_words() const;

  plan::PlanChannel* channel_;
  Rank size_;
  std::chrono::nanoseconds patience_;
  State state_ = State::kNone;
  StepPlan plan_;
  std::vector<Batch> batches_;
  std::vector<Ticket> tickets_;      // by member; null: not submitted in this round
  std::vector<CacheId> ids_;         // by member
  std::vector<uint32_t> batch_of_;   // by member
  std::vector<uint32_t> next_;       // by member: where the same id comes next in the cycle
  std::vector<uint32_t> member_of_;  // by id: the member that its next submission is
  std::unordered_map<std::string, CacheId> id_of_;
  uint64_t entered_ = 0;     // batches given to the channel
  size_t cursor_ = 0;        // entered_ mod number of batches
  size_t held_ = 0;          // tickets that the channel has not taken
  uint64_t finished_ = 0;    // seen by the last poll
  Time moved_{};             // when anything last happened
  uint64_t first_lost_ = 0;  // M
  std::string why_;
  std::vector<Member> back_;
};

}  // namespace rueda::plan

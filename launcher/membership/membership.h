// MembershipDecider: who belongs to the next epoch of a job. The only place that decides it.
//
//   RUNNING(e) ──a member is lost, or an announced change is due─> ENDING(e)
//      ^                                                              │ all of e are gone or have
//      │                                                              │ entered, newcomers are here
//      └──────────────── epoch e' > e is decided ─────────────────────┘
//                                 │ fewer than min_np are left
//                                 └──> WAITING: survivors keep their state, until elastic_timeout
//
// Pure: events in, actions out, no clock, no processes, no sockets. Its owner (the controller) does
// what the actions say, in their order, and tells what happens. Epochs are numbered here, and a
// number is never given twice; so are members. A job of fixed size is the policy in which a lost
// member ends the job: it has the same path.
//
// Threads: one at a time. Every event has a time, which never goes back.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/job/host_plan.h"
#include "launcher/job/hostfile.h"
#include "launcher/membership/host_table.h"
#include "proto/messages.h"

namespace rueda::launcher::membership {

using MemberId = uint64_t;  // from 0; the first members' numbers are their ranks in epoch 1

// What happens when a rank fails, in an elastic job.
enum class OnFailure {
  // A new process in its slot, 3 times in 10 minutes; then as kBlacklist. ruedarun's default.
  kReplace,
  kShrink,     // the others go on without it
  kBlacklist,  // its whole host leaves and is not used again before its cooldown. Horovod's way
};
// When newcomers enter.
enum class OnJoin {
  kReady,  // once they wait to be let in; until then the others train. ruedarun's default
  // The others leave at their next commit as soon as a change is known, and wait. Horovod's way.
  kAnnounce,
};

struct Policy {
  bool elastic = false;  // else: the first loss ends the job, nobody joins
  int start_np = 1;      // -np: to start with
  int min_np = 1;
  int max_np = 0;  // 0: as many as there are slots
  OnFailure on_failure = OnFailure::kReplace;
  OnJoin on_join = OnJoin::kReady;
  int spares = 0;
  Seconds elastic_timeout{600};
  int reset_limit = -1;  // below 0: none
  // Of a blacklisted host, in seconds; nothing: for ever.
  std::optional<std::pair<double, double>> cooldown;
  int most_replacements = 3;  // of a slot, within replacement_span
  Seconds replacement_span{600};
  int most_heals_without_commit = 3;
  Seconds last_call{0.02};    // after a loss: others that were lost with it
  Seconds fence_patience{2};  // for the threads of a lost process to be gone; then fresh memory
  uint64_t seed = 0;          // of the cooldowns' random part
};

// ---- what happens -------------------------------------------------------------------------------

// The hosts that may be used now, in order: given once, or as discovery found them. `named`: all
// that are on the user's list, if there are others. `begin_short`: the job may begin with fewer
// ranks than start_np, with min_np at least.
struct HostsFound {
  std::vector<HostSlots> hosts;
  std::set<std::string> named = {};
  bool begin_short = false;
};
// A process that was to be started runs; or could not be started (`error`).
struct MemberStarted {
  MemberId member;
  int64_t pid;
  std::string error;
};
// It is lost: known dead, or silent and killed for that. Comes again when more is known of how.
struct MemberLost {
  MemberId member;
  std::string how;
  bool is_final = true;  // no more will be known
};
// No thread of it can run any more.
struct MemberFenced {
  MemberId member;
};
// Its process has been reaped. `failed`: not with code 0, and not stopped by us. `removed`: it was
// stopped, or told that it is out; by who was before us, where it lives as far as we know.
struct MemberEnded {
  MemberId member;
  int exit_code;
  bool failed;
  std::string how;
  bool removed = false;
};
// It asks to enter an epoch.
struct MemberEnters {
  MemberId member;
  wire::Standing standing;
};
// A host is gone with all that ran there.
struct HostLost {
  std::string host;
  std::string how;
  bool was_silent = false;  // its ranks may have ended well
};
// Its members are to leave at their next commit (rueda drain, a notice of preemption). It may be
// one that is not there yet.
struct HostDrained {
  std::string host;
};
// A member is too slow, and is to be replaced when a replacement is ready; or it is so no more.
struct MemberSlow {
  MemberId member;
  bool is_slow = true;
};
// Time has passed.
struct Tick {};

using Event = std::variant<HostsFound, MemberStarted, MemberLost, MemberFenced, MemberEnded,
                           MemberEnters, HostLost, HostDrained, MemberSlow, Tick>;

// ---- what is to be done -------------------------------------------------------------------------

// Start a process. `place`: the rank that it can expect, for its environment.
struct StartMember {
  MemberId member;
  std::string host;
  int slot;
  RankPlace place;
  bool spare;
};
// Its process is to end: it is no part of the job any more, and its end is no failure.
struct StopMember {
  MemberId member;
  std::string why;
};
// Tell its members that epoch `epoch` is over, because this one was lost. `has_left`: it lives, and
// has said that the epoch has ended under it, but no loss is known: it is no dead peer.
struct EndEpoch {
  uint64_t epoch;
  MemberId lost;
  bool has_left = false;
};
// Answer who waits to enter. What all members are told is there once: copies of it for 10,000 ranks
// would be gigabytes.
struct Answer {
  MemberId member;
  Rank rank;
  std::shared_ptr<const wire::NewEpoch> common;  // but for the rank

  wire::NewEpoch epoch() const {
    wire::NewEpoch mine = *common;
    mine.rank = rank;
    return mine;
  }
};
// Tell all members of the epoch: leave at the next commit. `changes`: 1 removed, 2 added, 3 both.
// With 4 (and no new serial): a member has ended with success, and nobody is started any more.
inline constexpr int kFinishing = 4;
struct Announce {
  uint64_t serial;
  int changes;
  std::vector<MemberId> members;
};
// A line for the user.
struct Say {
  std::string text;
};
// A line for the user about members that were lost together. That they are is often known before
// the cause is: the line waits for it, and nothing else does.
struct LossLine {
  struct Loss {
    MemberId member = 0;
    std::string name, how;
    bool is_final = false;  // no more will be known
  };
  std::vector<Loss> losses;
  std::string end;  // what became of the others
  Time until = {};  // it is said then at the latest

  // `how` may be empty: nothing new.
  void know_more(MemberId member, const std::string& how, bool is_final);
  bool is_known() const;
  std::string text() const;
};
// The job is over: stop everybody. `text`: why; empty after success. `failed`: whose the code is.
// `unsaid`: to be said at the very end, when their processes have been reaped.
struct EndJob {
  int exit_code;
  std::string text;
  std::optional<MemberId> failed = {};
  std::vector<LossLine> unsaid = {};
};

using Action = std::variant<StartMember, StopMember, EndEpoch, Answer, Announce, Say, EndJob>;

class MembershipDecider {
 public:
  // 124: too few ranks for elastic_timeout. 75: reset_limit, or heals without a commit.
  static constexpr int kTooFew = 124, kTooOften = 75;

  explicit MembershipDecider(Policy policy);
  MembershipDecider(MembershipDecider&&) noexcept;
  MembershipDecider& operator=(MembershipDecider&&) noexcept;
  ~MembershipDecider();

  std::vector<Action> on(const Event& event, Time now);
  // When a Tick is due; nullopt: not before the next event.
  std::optional<Time> next_deadline() const;

  uint64_t epoch() const;  // that runs, or ran last; 0: none yet
  struct Seat {
    MemberId member;
    std::string host;
    int slot;
    Rank rank;
  };
  std::vector<Seat> seats() const;  // of that epoch, by rank
  // As they were told last; of the others on the list, those that are drained.
  std::vector<HostSlots> found_hosts() const;
  bool is_drained(const std::string& host) const;
  bool knows(const std::string& host) const;  // it was there once, or is drained
  std::set<std::string> hosts_with_members() const;
  // What HostDrained would do with a host now, in words for who wants it. Else why it is better
  // not told: kNotFound, the job has no such host; kFailedPrecondition, it has no other.
  Result<std::string> drain_outlook(const std::string& host) const;
  // For who asks what would be after events that are not decided yet.
  MembershipDecider copy() const;
  // The last decision as bytes, and a decider that goes on from there: for who takes over. Stored
  // before a StartMember or an Answer with a new epoch is acted on, so that no number is given
  // twice. Who takes over is told again which members and hosts are gone and what hosts there are;
  // it repeats orders, and who waits asks again.
  std::string record() const;
  static std::unique_ptr<MembershipDecider> resume(Policy policy, std::string_view record);

 private:
  struct State;
  explicit MembershipDecider(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace rueda::launcher::membership

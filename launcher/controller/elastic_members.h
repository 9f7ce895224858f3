// ElasticMembers: does for a controller what the MembershipDecider decides for an elastic job.
//
//   store: who asks to enter ──┐                                  ┌─> orders to the agents: start,
//   agents: started, lost,     ├─> MembershipDecider ──actions──> │   stop, epoch ended, epoch
//     fenced, ended            │                                  │   begins, announcement, over
//   Discovery: hosts ──────────┘                                  └─> store: epoch begins, answers
//
// Owns:    the decider, the discovery and its process. Borrows its plan and the store.
// Threads: its owner's. What happens is queued, and decided in work(): orders may lead to more that
//          happens before they return.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/hosts/order.h"
#include "launcher/job/exit_report.h"
#include "launcher/membership/membership.h"
#include "launcher/membership/slow_ranks.h"
#include "launcher/observe/host_report.h"
#include "launcher/processes/discovery.h"
#include "runtime/observe/life/life_page.h"
#include "runtime/rendezvous/store_server.h"

namespace rueda::launcher {

struct ElasticPlan {
  membership::Policy policy;
  std::vector<HostSlots> hosts;                           // without a script
  std::optional<DiscoveryPlan> discovery;                 // else
  std::vector<std::string> own_names;                     // of hosts that are this machine
  std::optional<membership::SlowPolicy> evict_slow = {};  // nothing: nobody is
};

// Of the hosts that were found, those where ranks can be started now.
struct ReadyHosts {
  std::vector<HostSlots> hosts;
  bool more_come = false;  // others are being made ready
  // The job is to begin though there are fewer than it was to begin with.
  bool begin_short = false;
};

class ElasticMembers {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Doors {
    // An order for a host; without a name for all of them.
    std::function<void(const std::string& host, const Order&)> tell;
    std::function<void(const std::string& text)> say;
    // Who makes others ready, or gives one up, calls hosts_changed() then.
    std::function<ReadyHosts(const std::vector<HostSlots>& found)> ready_hosts;
    // Of a host, for its ranks' sockets; empty: as their environment says.
    std::function<std::string(const std::string& host)> address_of;
    // Whose number is which from now on.
    std::function<void(const std::map<MemberId, Rank>& ranks)> begin_epoch;
    // Where another controller may take over: the decision is to be kept elsewhere, and is acted on
    // when record_is_kept() is called. Null: nobody takes over.
    std::function<void(const std::string& record)> keep;
    bool takes_over = false;  // nothing is decided before take_over()
  };
  ElasticMembers(const ElasticPlan& plan, rendezvous::StoreServer* store, Doors doors);

  // ---- what happens
  void started(const MemberStart& start, pid_t pid, const std::string& error);
  void lost(const life::LostRank& lost);
  void fenced(MemberId member);
  void ended(const RankEnd& end);
  // With all that ran there: a verdict for each of them, whose ends follow.
  void host_lost(const std::string& host, const std::string& how,
                 const std::vector<life::LostRank>& losses, bool was_silent);
  // Its ranks leave at their next commit, and it is not used before it has been off the list. What
  // comes of it, in words; or why it is not drained. `as_last`: also when there is no other.
  Result<std::string> drain(const std::string& host, bool as_last = false);
  // One that was awaited: no agent of it is there.
  void awaited_is_drained(const std::string& host);
  // How far a member is, and how long it has waited for the others.
  void counted(const RankCounters& counters);
  // Other hosts are ready than before.
  void hosts_changed();
  void record_is_kept();
  // Goes on from another's last decision: what has become of its members and hosts is told next.
  // `living`: those that agents have; `back`: the hosts that are there, which may have come after
  // that decision. False where the record makes no sense.
  struct Living {
    MemberId member;
    std::string host;
    Rank rank;
    pid_t pid;
  };
  bool take_over(const std::string& record, const std::vector<Living>& living,
                 const std::vector<std::string>& back);
  const std::vector<HostSlots>& found() const { return found_; }
  // Nobody decides otherwise again: no drain waits for its decision to be kept elsewhere.
  bool drains_are_kept() const;
  bool is_drained(const std::string& host) const { return decider_.is_drained(host); }
  bool knows(const std::string& host) const { return decider_.knows(host); }
  std::set<std::string> hosts_with_members() const { return decider_.hosts_with_members(); }
  bool child_ended(pid_t pid, int wait_status);

  void add_to_poll(std::vector<pollfd>* fds) const;
  std::optional<TimePoint> next_deadline() const;
  void work(TimePoint now);

  // How the job has ended, as the decider says.
  struct Over {
    int exit_code = 0;
    std::string text;  // why
    std::optional<MemberId> failed;
    std::vector<membership::LossLine> unsaid;
  };
  const std::optional<Over>& over() const { return over_; }
  // It is stopped for another reason: nothing is decided any more.
  void stop();

 private:
  Result<std::string> drain_outlook(const std::string& host) const;
  void look_for_hosts(TimePoint now);
  void look_for_slow(TimePoint now);
  void settle(TimePoint now);
  void hosts_found(std::vector<HostSlots> hosts);
  void decide(const membership::Event& event, TimePoint now);
  bool is_lasting(const membership::Action& action) const;
  void perform_all(const std::vector<membership::Action>& actions);
  void perform(const membership::StartMember& action);
  void perform(const membership::StopMember& action);
  void perform(const membership::EndEpoch& action);
  void perform(const membership::Answer& action);
  void perform(const membership::Announce& action);
  void perform(const membership::Say& action) { doors_.say(action.text); }
  void perform(const membership::EndJob& action);
  void begin_epoch(const wire::NewEpoch& epoch);
  void ranks_are(uint64_t epoch, std::vector<uint64_t> by_rank);
  void tell_loss(life::LostRank lost);
  void finish(Over over);
  // Of the job's last losses, when it is over.
  void know_more(const membership::MemberLost& loss);

  const ElasticPlan& plan_;
  rendezvous::StoreServer* const store_;
  const Doors doors_;
  membership::MembershipDecider decider_;
  std::optional<Discovery> discovery_;
  std::deque<membership::Event> events_;
  struct Known {
    std::string host;
    Rank rank = 0;             // in its newest epoch; before the first the one to expect
    pid_t pid = 0;             // of what was started
    std::string stopped = {};  // why we have stopped it
    std::string how = {};      // it has ended
    std::optional<life::LostRank> loss = {};
  };
  std::map<MemberId, Known> members_;
  uint64_t begun_ = 0;                  // the newest epoch that was answered
  std::optional<life::LostRank> told_;  // the newest verdict
  std::vector<HostSlots> found_;        // the hosts that there are
  bool any_ready_ = false;              // or none will be, for now: the decider is told
  bool begins_ = true;
  std::optional<membership::SlowRanks> slow_ranks_;
  std::optional<MemberId> slow_;  // of which the decider knows
  TimePoint next_slow_look_{};
  bool takes_over_ = false;
  std::optional<std::vector<membership::Action>> withheld_;  // until the record is kept
  std::optional<Over> over_;
};

}  // namespace rueda::launcher

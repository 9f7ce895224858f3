// The real MembershipDecider over a clock, a network and members that are all in one thread.
// Members apply a step when all have entered it, acknowledge it when all have entered the next;
// they die, stall, are cut off and run on, hosts are drained, vanish and come, and the decider's
// place is taken over from its record, which may be as old as its owner may let it be. Each epoch
// that it decides is held against the rules of the model, with what members have in truth.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launcher/membership/membership.h"
#include "tests/simulation/membership_rules.h"

namespace rueda::testing {

namespace ms = launcher::membership;

enum class MemberBug { kNone, kAcknowledgesAlone, kClaimsState, kAppliesEarly };
// What a decider, or who keeps its record, may do wrong.
enum class DeciderBug {
  kNone,
  kOldNumber,      // the last epoch's
  kOldRecord,      // stored after its answers were given
  kLastIsRoot,     // the last rank is the first
  kAllAreSources,  // each is said to hold the target
  kTargetIsOlder,  // by one commit
  kBeginsAnew,     // whatever there is
  kNoFreshMemory,  // a thread of a lost member that runs is forgotten
  kFencesAtOnce,   // and so its slot is used
  kDoesNotWait,    // for one that is still in the epoch
};

class MembershipWorld {
 public:
  explicit MembershipWorld(uint64_t seed, MemberBug bug = MemberBug::kNone,
                           DeciderBug decider_bug = DeciderBug::kNone);
  // "" or what must never be.
  std::string run();
  int epochs() const { return static_cast<int>(decider_->epoch()); }
  uint64_t acknowledged() const { return acknowledged_.size(); }
  int faults() const { return faults_; }

 private:
  struct Process {
    std::string host;
    bool runs = true;  // as a process; cut off it runs on
    bool cut = false;
    bool ends = false;    // it was killed, and some thread of it may still run,
    bool writes = false;  // in memory of its epoch
    uint64_t memory = 0;  // which memory it has mapped
    int slot = 0;
    bool has_state = false;
    std::vector<uint64_t> history;  // digest after each commit
    std::shared_ptr<const wire::NewEpoch> epoch;
    bool in_epoch = false;  // trains, or copies its state
    bool synced = false;
    uint64_t entered = 0;               // steps, counted from the beginning of the job
    std::map<uint64_t, uint64_t> word;  // announcement seen when it entered a step
    uint64_t announced = 0;
    double stalled_until = 0;
    double last_sent = 0;
    wire::EnterCause asked = wire::EnterCause::kFirst;
    bool waits = false;
  };

  double random() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }
  uint64_t next();
  uint64_t below(uint64_t n) { return next() % n; }
  void at(double when, std::function<void()> what) { queue_.emplace(when, std::move(what)); }
  void tell(const ms::Event& event);
  void perform(const ms::Action& action);
  void plant(std::vector<ms::Action>& actions);
  void check(const wire::NewEpoch& epoch);
  void check_slot(const ms::StartMember& start);
  void deliver(const ms::Answer& answer);
  wire::Standing standing_of(ms::MemberId id, wire::EnterCause cause);
  void enter(ms::MemberId id, wire::EnterCause cause);
  void train(ms::MemberId id);
  void leave_epoch(ms::MemberId id, wire::EnterCause cause);
  void fault();
  void kill(ms::MemberId id);
  void discover();
  void take_over();
  ms::MemberId some_member();
  bool sees(const Process& a, const Process& b) const { return a.cut == b.cut; }
  void broken(const std::string& what) {
    if (broken_.empty()) broken_ = what;
  }

  ms::Time time() const {
    return ms::Time(std::chrono::seconds(100)) +
           std::chrono::duration_cast<ms::Time::duration>(ms::Seconds(now_));
  }

  uint64_t random_;
  const MemberBug bug_;
  const DeciderBug decider_bug_;
  ms::Policy policy_;
  std::unique_ptr<ms::MembershipDecider> decider_;
  std::multimap<double, std::function<void()>> queue_;
  double now_ = 0;
  std::map<ms::MemberId, Process> processes_;
  std::map<std::string, int> hosts_;
  std::vector<uint64_t> acknowledged_;
  std::set<std::string> gone_hosts_, lost_hosts_;  // cut off; known to be
  uint64_t last_epoch_ = 0;
  std::shared_ptr<const wire::NewEpoch> newest_;
  uint64_t memory_ = 0;  // which all of the newest epoch map
  std::string record_;
  int faults_ = 0;
  std::set<ms::MemberId> seen_;
  double last_commit_ = 0;
  bool ended_ = false;
  bool calm_ = false;
  int ticks_due_ = 0;
  std::string broken_;
};

}  // namespace rueda::testing

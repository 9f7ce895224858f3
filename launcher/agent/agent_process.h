// The class behind run_agent. start.cc: until the ranks run; loop.cc: the loop; end.cc: ends of
// ranks, and of this host's part.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/agent/agent.h"
#include "launcher/agent/gpu_health.h"
#include "launcher/agent/job_observer.h"
#include "launcher/agent/life_watch.h"
#include "launcher/agent/oom_watch.h"
#include "launcher/agent/rank_process.h"
#include "launcher/job/supervisor.h"

namespace rueda::launcher {

inline TimePoint time_now() { return std::chrono::steady_clock::now(); }

inline Duration to_duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

class Agent : public ControlledHost {
 public:
  Agent(const AgentPlan& plan, UniqueFd guard_link, ControllerClient* controller)
      : plan_(plan),
        controller_(controller),
        guard_link_(std::move(guard_link)),
        supervisor_(to_duration(plan.options.grace_seconds)) {
    controller_->serve(this);
  }

  int run();

  void follow(const Order& order) override;
  HostEnd end() const override;
  bool is_wanted() override;
  void add_to_poll(std::vector<pollfd>* fds) const override;

 private:
  Status prepare();
  Status start_ranks();
  Status start_member(const MemberStart& start);
  Status start_process(RankProcess* rank, const RankBinding& binding);
  RankBinding binding_of(const MemberStart& start) const;
  int pick_stdin(Rank rank) const;

  Status start_observer();
  void wait_for_events();
  int poll_limit_ms() const;
  void take_observations();
  void read_signals();
  void count();
  void check_guard();
  bool leaves(int signal, bool by_guard);
  void leave_in_time();
  void signal_ranks(int signal);
  void start_late(const MemberStart& start);
  void stop_member(MemberId member, const std::string& why);
  void leave_member(MemberId member);
  Duration grace() const { return to_duration(plan_.options.grace_seconds); }
  void end_later(MemberId member);
  void end_removed();
  void forget_ended();
  void begin_epoch(const std::map<MemberId, Rank>& ranks);
  void job_over(int exit_code);
  void observe(const HostQuestion& question);
  struct Drained {
    int asked = 0, ranks = 0;
  };
  Drained drain_ranks();
  void reap();
  void end_children_of(const RankProcess& rank, bool well) const;
  void rank_ended(RankProcess* rank, int wait_status, uint64_t resident_peak);
  void look_at_lives();
  void look_for_late_ranks();
  void rank_lost(const life::LostRank& lost);
  void verdict_came(const life::LostRank& lost);
  void tell_loss(const RankProcess& rank, const RankEnd& end, const std::string& how);
  void stop_for_failure();
  void send(int signal);
  bool finished();
  bool all_ended() const;
  RankProcess* find(MemberId member) const;  // null: not here
  void say(const std::string& text) { controller_->say(text); }
  void narrate(const std::string& text) {
    if (plan_.options.verbose) say(text);
  }
  void start_failed(const Status& why);
  int finish(const Status& started);

  const AgentPlan& plan_;
  ControllerClient* const controller_;
  UniqueFd guard_link_;
  UniqueFd signals_;
  Supervisor supervisor_;
  std::unique_ptr<LifeWatch> lives_;
  OomWatch oom_;
  std::unique_ptr<GpuHealth> gpus_;     // null: there are none here
  std::optional<life::LostRank> lost_;  // the job's first; an elastic job's newest
  bool replaced_ = false;    // and its process ran on as another program when we stopped it
  bool lost_by_us_ = false;  // it ended because we stopped the job: nobody's failure
  UniqueFd key_fd_, null_;
  // In an elastic job those that have ended are taken out.
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::set<MemberId> ordered_;              // all that were ever to be started
  std::map<MemberId, std::string> causes_;  // of those of ours that are lost, as was told first
  std::unique_ptr<JobObserver> observer_;   // null: could not be started

  std::optional<TimePoint> waiting_since_;  // in init, for others
  bool told_late_ = false;
  std::vector<RankCounters> counted_;
  std::vector<int> drain_signals_;
  bool any_failed_ = false;
  bool over_ = false;                  // an elastic job
  bool finishing_ = false;             // the loop has ended
  int noticed_ = 0;                    // number of the deaths that are noticed together
  std::set<MemberId> dying_together_;  // were ending already when the first failure was noticed
  int dying_number_ = 0;
  int signals_received_ = 0;
  int last_sent_ = 0;      // to leftovers, too
  std::set<pid_t> swept_;  // leftovers that were sent last_sent_
  std::optional<TimePoint> give_up_at_;
  std::optional<TimePoint> leave_by_;  // this machine is to go
  bool notice_by_guard_ = false;       // who told so: our guard hands on what it gets
  std::multimap<TimePoint, std::pair<MemberId, int>> signals_due_;  // to members that go on
};

}  // namespace rueda::launcher

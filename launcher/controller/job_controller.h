// The class behind run_controller. start.cc: until agents are started; hosts.cc: from an agent that
// is here to ranks on its host; elastic_hosts.cc: hosts that come and go; take_over.cc: after
// another one that was killed; come_back.cc: a host whose connection has ended; loop.cc: the loop;
// end.cc: ends of ranks and hosts, and of the job.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/controller/control_server.h"
#include "launcher/controller/controller.h"
#include "launcher/controller/hosts_observer.h"
#include "launcher/controller/job_books.h"
#include "launcher/controller/job_host.h"
#include "launcher/controller/starter.h"
#include "launcher/hosts/stream_relay.h"
#include "launcher/hosts/ticket.h"
#include "launcher/job/exit_report.h"
#include "launcher/job/supervisor.h"
#include "runtime/observe/life/life_page.h"
#include "runtime/rendezvous/job_key.h"

namespace rueda::launcher {

inline TimePoint clock_now() { return std::chrono::steady_clock::now(); }

class JobController {
 public:
  JobController(const ControllerPlan& plan, GuardLink link)
      : plan_(plan),
        link_(std::move(link)),
        books_(plan),
        supervisor_(std::chrono::duration_cast<Duration>(
            std::chrono::duration<double>(plan.options.grace_seconds))),
        job_id_(plan.succession->job_id()),
        serial_(first_serial(plan.succession->generation())) {}
  ~JobController() {
    if (!token_file_.empty()) unlink(token_file_.c_str());
  }

  int run();

 private:
  Status prepare();
  Status open_store();
  Status add_member(int host, const MemberStart& start);
  void tell(const std::string& host, const Order& order);
  ReadyHosts ready_hosts(const std::vector<HostSlots>& found);
  std::vector<Rank> ranks_of(int host) const;
  Status open_observer();
  std::vector<HostStatus> host_states() const;
  void gather_recorders();
  Status start_agents();
  Result<std::unique_ptr<Starter>> start_agent(size_t host);
  void start_late_hosts(TimePoint at);
  Status write_token_file(const std::string& ticket);

  void wait_for_events();
  void read_signals();
  void asked_to_stop(int signal);
  void take_events();
  void take_event(AgentEvent* event);
  void take_message(int host, control::AgentMessage* message);
  void agent_here(int host, const control::Register& agent);
  // ---- hosts.cc
  void begin_round_if_due();
  void begin_round(std::vector<int> newcomers);
  void probe();
  void end_round();
  void leave_round(int host);
  Result<std::map<int, std::string>> choose_addresses_of(const std::vector<int>& all,
                                                         const std::vector<int>& newcomers);
  std::vector<int> in_round() const;
  void send_probe(int host, const std::vector<int>& targets);
  void assign(int host, const std::vector<std::string>& environment);
  void close_door();
  ReachHost reach_of(const std::string& name, const control::Register& agent) const;
  // ---- take_over.cc
  void keep_record(const std::string& record);
  void record_kept(int host, uint64_t serial);
  void act_on_kept();
  void agent_back(int host, const control::Register& agent);
  const control::Holds* newest_held() const;
  bool has_majority(const control::Holds& newest) const;
  void take_over_if_due(TimePoint at);
  void take_over();
  void go_on(const std::vector<ElasticMembers::Living>& living);
  void close_door_after_all();
  // ---- come_back.cc
  void connection_ended(int host, const std::string& why);
  void connection_is_back(int host);
  bool is_dead(int host) const;
  void await_return();
  void await_no_return();
  bool any_cut() const;
  // ---- elastic_hosts.cc
  bool finds_hosts() const { return elastic() && plan_.elastic->discovery.has_value(); }
  Status invite(const HostSlots& host);
  void let_go();
  void drop(int host, const std::string& why);
  bool begin_without_missing(TimePoint at);
  Duration start_limit() const {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(plan_.start_seconds));
  }
  void forget_newcomers();
  void bar_lost(const std::string& host);
  Result<std::string> drain_host(const std::string& host);
  void host_leaves(int host, const std::string& why);
  void say_goodbye_to(int host);
  void look_at_hosts(TimePoint at);
  std::string address_of(const std::string& host) const;
  void tell_failure(int except);
  void rank_lost(int host, const life::LostRank& lost);
  void rank_started(int host, const control::RankStarted& started);
  void rank_ended(int host, const control::RankEnded& ended);
  void end_rank(RankEnd end, const std::string& text);
  void host_finished(int host, const control::Finished& finished);
  std::vector<life::LostRank> losses_of(int host, const std::string& cause) const;
  void elastic_work();
  void host_lost(int host, const std::string& why, bool was_silent = false);
  void reap();
  void pump_starter(size_t number);
  void starter_ended(size_t number);
  void check_time();
  void check_silence(TimePoint at);
  void check_start(TimePoint at);
  std::string why_late(size_t host) const;
  void broadcast(control::Order::Kind kind, int signal, int except = -1);
  void fail(int code, const std::string& text);
  // None of them speaks for those of another.
  bool runs_at(int host, MemberId member) const;
  bool all_over() const;
  bool elastic() const { return plan_.elastic.has_value(); }
  // Another controller follows where we are killed.
  bool has_successor() const { return plan_.succession->has_next(); }
  // An agent whose connection has ended may make another.
  bool may_come_back() const { return !plan_.succession->door_addresses().empty(); }
  double return_seconds() const;
  // Its ranks come and go still.
  bool goes_on() const;
  int count(JobHost::State state) const;
  bool started() const { return assigned_; }
  std::string where(int host) const { return hosts_[static_cast<size_t>(host)].name(); }
  void say(const std::string& text) { books_.say(text); }
  void narrate(const std::string& text) { books_.narrate(text); }
  void say_goodbye(int exit_code);
  Patience patience();
  JobEnd job_end() const;
  int finish();

  const ControllerPlan& plan_;
  GuardLink link_;
  UniqueFd signals_;
  JobBooks books_;
  Supervisor supervisor_;
  const std::string& job_id_;
  std::string token_file_;
  StreamRelay relay_;
  std::unique_ptr<ControlServer> server_;
  std::map<size_t, std::unique_ptr<Starter>> starters_;  // by host, or one srun
  std::optional<ProofDoor> ticket_door_;                 // of plan_.nodes, until all are here
  std::vector<std::string> tickets_;  // by host; one for all where one_ticket(). Until all are here
  std::deque<JobHost> hosts_;         // by number; they stay where they are when others come
  std::optional<HostsObserver> observer_;  // from prepare() on
  struct Member {
    int host = 0;
    Rank rank = 0;
    int pid = 0;  // once it is started
  };
  std::map<MemberId, Member> members_;
  std::vector<ReachTry> tries_;
  // Hosts that try to reach each other: those that are new, and those whose ranks run.
  struct Round {
    uint64_t number = 0;  // comes back with the answers
    std::vector<int> newcomers;
    std::set<int> opening;  // of the others, who have no port yet at which they answer
    std::set<int> awaited;  // who has not told yet whom it has reached
  };
  std::optional<Round> round_;
  uint64_t last_round_number_ = 0;
  std::optional<TimePoint> first_here_;
  Ticket ticket_;                  // but for the agent's certificate
  std::vector<HostSlots> listed_;  // the hosts that there are, of an elastic job
  // Hosts that are not invited before this time; nothing: not while they are on the list. One whose
  // ranks run still is drained: it is let go when they have left.
  std::map<std::string, std::optional<TimePoint>> barred_;
  // Of the newest decision, until enough agents keep it.
  struct Keeping {
    uint64_t serial = 0;
    std::set<int> asked, by;  // hosts
  };
  uint64_t serial_ = 0;
  std::optional<Keeping> keeping_;
  std::set<int> epoch_hosts_;  // with ranks of the epoch that began last
  // While we take over: who is back, and what has come from them.
  bool taking_over_ = false, listens_for_late_ = false;
  bool awaits_return_ = false;            // we listen where agents come back to
  std::optional<TimePoint> lost_cut_;     // when a host was lost that did not come back
  std::optional<TimePoint> heard_again_;  // when one was that had been silent
  std::map<int, control::Holds> back_;
  TimePoint last_back_;
  std::vector<AgentEvent> waiting_events_;
  std::set<size_t> late_;    // hosts that have not come, and may still
  std::set<int> gone_;       // whose connections have ended
  bool lost_by_us_ = false;  // the lost rank ended because we stopped the job: nobody's failure
  std::map<std::pair<int, int>, int> noticed_;  // (host, its number) -> ours
  int signals_received_ = 0;
  bool assigned_ = false, failure_told_ = false;
  bool begins_short_ = false;  // without hosts of -H that are late
  int failure_ = 0;            // exit code of our own failure, which has been said
  TimePoint begun_ = clock_now(), last_beat_ = begun_, last_round_ = begun_, last_told_ = begun_;
  TimePoint start_from_ = begun_;  // hosts are waited for
  std::optional<TimePoint> give_up_at_;
};

}  // namespace rueda::launcher

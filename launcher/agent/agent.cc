#include "launcher/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "collectives/base/config.h"
#include "collectives/base/number_text.h"
#include "collectives/base/signal_names.h"
#include "launcher/agent/job_observer.h"
#include "launcher/agent/life_watch.h"
#include "launcher/agent/oom_watch.h"
#include "launcher/agent/rank_process.h"
#include "launcher/job/exit_code.h"
#include "launcher/job/exit_report.h"
#include "launcher/job/fixed_epochs.h"
#include "launcher/job/job_id.h"
#include "launcher/job/rank_environment.h"
#include "launcher/job/summary_report.h"
#include "launcher/job/supervisor.h"
#include "launcher/output/console.h"
#include "launcher/output/output_copies.h"
#include "launcher/processes/process_state.h"
#include "launcher/processes/process_tree.h"
#include "launcher/processes/spawn.h"
#include "proto/store_codec.h"
#include "runtime/rendezvous/job_key.h"
#include "runtime/rendezvous/store_server.h"

namespace rueda::launcher {
namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

Duration to_duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

// "18:45:34.500 (1234.567890 s of the monotonic clock)", of the latter's nanoseconds.
std::string clock_text(int64_t monotonic_ns) {
  timespec monotonic = {}, real = {};
  clock_gettime(CLOCK_MONOTONIC, &monotonic);
  clock_gettime(CLOCK_REALTIME, &real);
  const auto nanoseconds = [](const timespec& t) {
    return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
  };
  const int64_t then = nanoseconds(real) - nanoseconds(monotonic) + monotonic_ns;
  const time_t seconds = then / 1'000'000'000;
  tm parts = {};
  localtime_r(&seconds, &parts);
  char clock[16], text[80];
  strftime(clock, sizeof(clock), "%H:%M:%S", &parts);
  std::snprintf(text, sizeof(text), "%s.%03d (%.6f s of the monotonic clock)", clock,
                static_cast<int>(then / 1'000'000 % 1000),
                static_cast<double>(monotonic_ns) * 1e-9);
  return text;
}

class Agent {
 public:
  Agent(const AgentPlan& plan, UniqueFd guard_link, ControllerClient* controller)
      : plan_(plan),
        controller_(controller),
        guard_link_(std::move(guard_link)),
        console_(plan.options.prefix, plan.options.prefix_timestamp,
                 find_variable(plan.base_environment, "NO_COLOR") == nullptr,
                 static_cast<int>(plan.places.size()), plan.options.fold),
        supervisor_(std::chrono::duration_cast<Duration>(
            std::chrono::duration<double>(plan.options.grace_seconds))) {
    console_.show_only(plan.options.shown_ranks);
  }

  int run();

 private:
  Status prepare();
  Status start_ranks();
  Result<std::unique_ptr<OutputTaker>> make_output(Rank rank);
  Status start_rank(RankProcess* rank, const JobEnvironment& job, const RankBinding& binding,
                    int null_fd);
  int pick_stdin(Rank rank, int null_fd) const;

  void start_observer(const std::string& job_id);
  void wait_for_events();
  void read_signals();
  void count();
  void check_guard();
  void signal_ranks(int signal);
  void observe(const HostQuestion& question);
  struct Drained {
    int asked = 0, ranks = 0;
  };
  Drained drain_ranks();
  void follow(const std::vector<Order>& orders);
  void reap();
  void rank_ended(RankProcess* rank, int wait_status, uint64_t resident_peak);
  void look_at_lives();
  void look_for_late_ranks();
  void rank_lost(const life::LostRank& lost, bool from_controller = false);
  void stop_for_failure();
  void send(int signal);
  bool finished();
  bool all_ended() const;
  void say(const std::string& text) {
    controller_ != nullptr ? controller_->say(text) : console_.say(text);
  }
  void narrate(const std::string& text) {
    if (plan_.options.verbose) say(text);
  }
  int finish(const Status& started);
  void drain_console();
  bool is_wanted();

  const AgentPlan& plan_;
  ControllerClient* const controller_;  // null on one host; then store_ is not
  UniqueFd guard_link_;
  UniqueFd signals_;
  Console console_;
  std::unique_ptr<OutputCopies> copies_;  // null: none, or the controller's
  Supervisor supervisor_;
  std::unique_ptr<rendezvous::StoreServer> store_;
  std::optional<FixedEpochs> epochs_;  // where there is a store
  std::unique_ptr<LifeWatch> lives_;
  OomWatch oom_;
  std::optional<life::LostRank> lost_;  // the job's first
  bool replaced_ = false;    // and its process ran on as another program when we stopped it
  bool lost_by_us_ = false;  // it ended because we stopped the job: nobody's failure
  UniqueFd key_fd_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<const RankOutput*> outputs_;  // of ranks_; empty where there is a controller
  std::unique_ptr<JobObserver> observer_;   // null: could not be started

  std::optional<TimePoint> waiting_since_;  // in init, for others
  bool told_late_ = false;
  std::vector<RankCounters> counted_;
  std::vector<int> drain_signals_;
  std::vector<RankEnd> ends_;
  int noticed_ = 0;                // number of the deaths that are noticed together
  std::set<Rank> dying_together_;  // were ending already when the first failure was noticed
  int dying_number_ = 0;
  int signals_received_ = 0;
  int last_sent_ = 0;      // to leftovers, too
  std::set<pid_t> swept_;  // leftovers that were sent last_sent_
  std::optional<TimePoint> give_up_at_;
};

// Becomes the place that every orphan of the job falls to, and learns of the guard's death twice:
// by a signal from the kernel and by the end of its pipe.
Status Agent::prepare() {
  prctl(PR_SET_NAME, "ruedarun-agent");
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (plan_.guard != 0) prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD})
    sigaddset(&wanted, signal);
  if (!plan_.hangup_ignored) sigaddset(&wanted, SIGHUP);
  signals_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return errno_status("cannot watch signals", errno);

  RUEDA_ASSIGN_OR_RETURN(lives_, LifeWatch::create(plan_.host.empty() ? host_name() : plan_.host,
                                                   to_duration(plan_.dead_seconds)));
  if (controller_ != nullptr) {
    RUEDA_ASSIGN_OR_RETURN(key_fd_, plan_.key.value().to_memfd());
    return {};
  }
  RUEDA_ASSIGN_OR_RETURN(const rendezvous::JobKey key, rendezvous::JobKey::make_random());
  RUEDA_ASSIGN_OR_RETURN(key_fd_, key.to_memfd());
  RUEDA_ASSIGN_OR_RETURN(store_, rendezvous::StoreServer::start());
  epochs_.emplace(std::vector<std::string>(plan_.places.size(), host_name()));
  remove_stale_parts(plan_.timeline);
  if (!plan_.options.output_folder.empty()) {
    RUEDA_ASSIGN_OR_RETURN(
        copies_, OutputCopies::create(plan_.options.output_folder, plan_.options.num_proc));
  }
  return {};
}

int Agent::pick_stdin(Rank rank, int null_fd) const {
  const Options& options = plan_.options;
  if (options.stdin_mode == Options::Stdin::kOneRank)
    return rank == options.stdin_rank ? STDIN_FILENO : null_fd;
  const bool terminal = options.stdin_mode == Options::Stdin::kAuto && plan_.terminal_stdin;
  return rank == 0 && terminal ? STDIN_FILENO : null_fd;
}

Result<std::unique_ptr<OutputTaker>> Agent::make_output(Rank rank) {
  if (controller_ != nullptr) return controller_->output_of(rank);
  auto output = std::make_unique<RankOutput>(rank, &console_);
  output->copy_to(copies_.get());
  outputs_.push_back(output.get());
  return std::unique_ptr<OutputTaker>(std::move(output));
}

Status Agent::start_rank(RankProcess* rank, const JobEnvironment& job, const RankBinding& binding,
                         int null_fd) {
  int out[2], err[2], talk[2];
  if (pipe2(out, O_CLOEXEC) != 0) return errno_status("cannot open a pipe", errno);
  UniqueFd out_read(out[0]), out_write(out[1]);
  if (pipe2(err, O_CLOEXEC) != 0) return errno_status("cannot open a pipe", errno);
  UniqueFd err_read(err[0]), err_write(err[1]);
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) != 0)
    return errno_status("cannot open a socket", errno);
  UniqueFd agent_end(talk[0]), rank_end(talk[1]);
  fcntl(out_read.get(), F_SETFL, O_NONBLOCK);
  fcntl(err_read.get(), F_SETFL, O_NONBLOCK);

  RUEDA_ASSIGN_OR_RETURN(const LifeWatch::Handed life, lives_->add(rank->place().rank));
  SpawnRequest request;
  request.program = plan_.program;
  request.arguments = plan_.options.command;
  request.environment =
      rank_environment(plan_.base_environment, job, rank->place(), rank_end.get());
  if (observer_ != nullptr) {
    const int fd = observer_->memory_fd(rank->place().rank);
    set_variable(&request.environment, "RUEDA_FLIGHT_FD", std::to_string(fd));
    request.inherited.push_back(fd);
  }
  request.cpus = binding.cpus;
  request.stdin_fd = pick_stdin(rank->place().rank, null_fd);
  request.stdout_fd = out_write.get();
  request.stderr_fd = err_write.get();
  set_variable(&request.environment, "RUEDA_LIFE_FDS", life.variable);
  request.inherited.push_back(rank_end.get());
  request.inherited.push_back(key_fd_.get());
  request.inherited.insert(request.inherited.end(), life.fds.begin(), life.fds.end());
  request.hangup_stays_ignored = plan_.hangup_ignored;
  RUEDA_ASSIGN_OR_RETURN(const pid_t pid, spawn_rank(request));
  rank->started(pid, std::move(out_read), std::move(err_read));
  RUEDA_RETURN_IF_ERROR(lives_->started(rank->place().rank, pid));
  if (observer_ != nullptr) observer_->rank_started(rank->place().rank, pid);
  narrate("rank " + std::to_string(rank->place().rank) + " is pid " + std::to_string(pid) + ", " +
          binding.text);
  if (controller_ == nullptr)
    return store_->add(std::move(agent_end), static_cast<uint64_t>(rank->place().rank));
  controller_->rank_started(rank->place().rank, pid);
  return controller_->attach(std::move(agent_end), rank->place().rank);
}

// What a person at a terminal likes to see before the first line of the ranks.
std::string start_line(const AgentPlan& plan) {
  const char* const transport = find_variable(plan.base_environment, "RUEDA_TRANSPORT");
  const char* const chosen = find_variable(plan.base_environment, "OMP_NUM_THREADS");
  int threads = chosen == nullptr ? 0 : std::atoi(chosen);
  for (const RankBinding& binding : plan.bindings) {
    if (chosen == nullptr) threads = std::max(threads, binding.threads);
  }
  const std::string way =
      transport == nullptr || std::string_view(transport) != "tcp" ? "shared memory" : "TCP";
  return counted(plan.places.size(), "rank") + " on this host" +
         (plan.places.size() > 1 ? ", over " + way : "") +
         (threads > 0 ? ", " + counted(static_cast<size_t>(threads), "thread") + " each" : "");
}

Status Agent::start_ranks() {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return errno_status("cannot open /dev/null", errno);
  const std::string job_id = plan_.job_id.empty() ? make_job_id() : plan_.job_id;
  JobEnvironment job = {job_id, 1, key_fd_.get()};
  if (controller_ == nullptr && console_.on_terminal()) console_.say(start_line(plan_));
  narrate("agent is pid " + std::to_string(getpid()) + ", job " + job.job_id + ", " +
          std::to_string(plan_.places.size()) + " x " + plan_.program);
  start_observer(job_id);
  for (size_t i = 0; i < plan_.places.size(); ++i) {
    const RankPlace& place = plan_.places[i];
    job.threads = plan_.bindings[i].threads;
    RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<OutputTaker> output, make_output(place.rank));
    ranks_.push_back(std::make_unique<RankProcess>(place, std::move(output)));
    RUEDA_RETURN_IF_ERROR(start_rank(ranks_.back().get(), job, plan_.bindings[i], null.get()));
  }
  return {};
}

// The job runs without one, too.
void Agent::start_observer(const std::string& job_id) {
  ObserverPlan plan;
  plan.job_id = job_id;
  for (const std::string& word : plan_.options.command) {
    if (!plan.command.empty()) plan.command += ' ';
    plan.command += word;
  }
  for (const RankPlace& place : plan_.places) plan.ranks.push_back(place.rank);
  plan.counts = controller_ != nullptr;
  const auto config =
      load_config([&](const char* name) { return find_variable(plan_.base_environment, name); });
  if (config.ok()) {
    // Over several hosts the controller explains, who sees all ranks.
    plan.stall_seconds = controller_ != nullptr ? 0 : config.value().stall_check_seconds;
    plan.dump_stalls = config.value().stall_policy != "warn";
    plan.folder = config.value().flight_folder;
    auto signals = parse_signals(config.value().preemption_signal);
    if (signals.ok()) drain_signals_ = std::move(signals).value();
    // SIGTERM and SIGINT mean other things to many a script.
    std::stable_partition(drain_signals_.begin(), drain_signals_.end(),
                          [](int signal) { return signal != SIGTERM && signal != SIGINT; });
  }
  auto observer = JobObserver::start(std::move(plan));
  if (observer.ok()) {
    observer_ = std::move(observer).value();
  } else {
    narrate("hangs will not be explained: " + observer.status().message());
  }
}

bool Agent::all_ended() const {
  return std::none_of(ranks_.begin(), ranks_.end(),
                      [](const auto& rank) { return rank->running(); });
}

void Agent::wait_for_events() {
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}, {guard_link_.get(), POLLIN, 0}};
  if (lives_) lives_->add_to_poll(&fds);  // looked at in every round
  if (store_) fds.push_back({store_->entries_fd(), POLLIN, 0});
  console_.add_to_poll(&fds);
  if (controller_ != nullptr) controller_->add_to_poll(&fds);
  const size_t observed = fds.size();
  fds.push_back({observer_ != nullptr ? observer_->event_fd() : -1, POLLIN, 0});
  struct Source {
    size_t index;
    RankProcess* rank;
    Stream stream;
  };
  std::vector<Source> sources;
  const bool slow = console_.congested() || (copies_ && copies_->congested()) ||
                    (controller_ != nullptr && controller_->congested());
  if (copies_) copies_->add_to_poll(&fds);
  if (!slow) {
    for (const auto& rank : ranks_) {
      for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
        if (rank->output_fd(stream) < 0) continue;
        sources.push_back({fds.size(), rank.get(), stream});
        fds.push_back({rank->output_fd(stream), POLLIN, 0});
      }
    }
  }
  int timeout_ms = -1;
  std::optional<TimePoint> deadline = supervisor_.next_deadline();
  if (give_up_at_ && (!deadline || *give_up_at_ < *deadline)) deadline = give_up_at_;
  const std::optional<TimePoint> look = lives_ ? lives_->next_deadline() : std::nullopt;
  const std::optional<TimePoint> lines = console_.next_deadline();
  if (lines && (!deadline || *lines < *deadline)) deadline = lines;
  if (look && (!deadline || *look < *deadline)) deadline = look;
  if (deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - now()).count();
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
  }
  if (controller_ != nullptr && (timeout_ms < 0 || timeout_ms > controller_->poll_limit_ms()))
    timeout_ms = controller_->poll_limit_ms();
  if (poll(fds.data(), fds.size(), timeout_ms) < 0) return;  // EINTR: nothing is lost

  if (copies_) {
    for (const std::string& line : copies_->take_problems()) say(line);
  }
  if (controller_ != nullptr) follow(controller_->work());
  if (fds[observed].revents != 0) {
    for (const std::string& line : observer_->take_lines()) say(line);
    if (observer_->take_drain()) {
      const Drained drained = drain_ranks();
      observer_->drained(drained.asked, drained.ranks);
    }
    if (controller_ != nullptr) {
      for (HostReport& report : observer_->take_reports()) controller_->report(std::move(report));
    }
  }
  if (controller_ != nullptr && observer_ != nullptr) count();
  if (fds[0].revents != 0) read_signals();
  if (guard_link_ && fds[1].revents != 0) check_guard();
  for (const Source& source : sources) {
    if (fds[source.index].revents != 0) source.rank->pump(source.stream);
  }
}

// When the observer has counted anew.
void Agent::count() {
  std::vector<RankCounters> counters = observer_->counters();
  if (counters == counted_) return;
  counted_ = counters;
  for (RankCounters& one : counters) {
    const life::LostRank now = lives_->verdict(one.rank, 0, "", false);
    one.operation = now.operation.str();
    one.operations = now.operations;
    one.step = now.step;
  }
  controller_->count(counters);
}

void Agent::read_signals() {
  signalfd_siginfo info = {};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;  // reap() looks for itself
    if (signal == SIGUSR2 && observer_ != nullptr && observer_->has_folder()) {
      observer_->request_dump();
      continue;
    }
    if (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGTSTP || signal == SIGCONT) {
      signal_ranks(signal);
      continue;
    }
    check_guard();
    if (!guard_link_) continue;  // the kernel's message that the guard is gone
    ++signals_received_;
    supervisor_.signal_received(signal, now());
    if (signals_received_ == 1) {
      say(signal_name(signal) + ": asking the ranks to stop (once more kills them at once)");
    }
  }
}

// The user's own: to the ranks and not to what they have started, which it would end. A pause
// (Ctrl-Z) is for all of them, and no silence; it comes as SIGSTOP, because a group without a
// parent in its session takes no SIGTSTP.
void Agent::signal_ranks(int signal) {
  if (signal == SIGTSTP || signal == SIGCONT) {
    lives_->pause(signal == SIGTSTP);
    for (const auto& rank : ranks_) rank->signal(signal == SIGTSTP ? SIGSTOP : SIGCONT);
    return;
  }
  for (const auto& rank : ranks_) rank->signal_process(signal);
}

// Whatever has happened elsewhere stops this host's ranks as if it had happened here.
void Agent::follow(const std::vector<Order>& orders) {
  for (const Order& order : orders) {
    switch (order.kind) {
      case Order::Kind::kRankFailed: supervisor_.rank_failed(now()); break;
      case Order::Kind::kRankLost: rank_lost(order.lost, true); break;
      case Order::Kind::kSignal: supervisor_.signal_received(order.signal, now()); break;
      case Order::Kind::kUserSignal: signal_ranks(order.signal); break;
      case Order::Kind::kOutputClosed: supervisor_.output_closed(now()); break;
      case Order::Kind::kKill: supervisor_.driver_lost(now()); break;
      case Order::Kind::kObserve: observe(order.question); break;
      case Order::Kind::kMail:
        if (observer_ != nullptr) observer_->mail(order.rank, order.text);
        break;
      case Order::Kind::kDrain: {
        const Drained drained = drain_ranks();
        controller_->drained(drained.asked, drained.ranks);
        break;
      }
    }
  }
}

void Agent::observe(const HostQuestion& question) {
  if (observer_ == nullptr) return controller_->report({question.round, 0, {}});
  observer_->request_report(question);
  for (HostReport& report : observer_->take_reports()) controller_->report(std::move(report));
}

// Ranks hear of it as of a preemption: with a signal that should_stop() waits for. To those that do
// not wait for one it would be the end, so they are left alone; one that listens is enough.
Agent::Drained Agent::drain_ranks() {
  Drained drained;
  for (const auto& rank : ranks_) {
    if (!rank->running()) continue;
    ++drained.ranks;
    for (const int signal : drain_signals_) {
      if (!catches_signal(rank->pid(), signal)) continue;
      rank->signal_process(signal);
      ++drained.asked;
      break;
    }
  }
  return drained;
}

void Agent::check_guard() {
  if (!guard_link_) return;
  pollfd link = {guard_link_.get(), POLLIN, 0};
  const bool closed = poll(&link, 1, 0) > 0;
  if (!closed && (plan_.guard == 0 || getppid() == plan_.guard)) return;
  guard_link_.reset();
  supervisor_.driver_lost(now());
}

void Agent::rank_ended(RankProcess* rank, int wait_status, uint64_t resident_peak) {
  rank->ended();
  const Rank number = rank->place().rank;
  RankEnd end;
  end.rank = number;
  // Where a shell was started, people look for the process in it.
  const pid_t joined = lives_->joined_pid(number);
  end.pid = joined > 0 ? joined : rank->pid();
  end.wait_status = wait_status;
  end.resident_peak = resident_peak;
  end.noticed = dying_together_.contains(number) ? dying_number_ : noticed_;
  end.stopped = supervisor_.stopping();
  ends_.push_back(end);

  end.hint = oom_.hint(wait_status);
  if (replaced_ && lost_->rank == number) {
    end.hint =
        ", by ruedarun: another program had taken its place (exec) before it had left the job "
        "(shutdown)";
  }
  ends_.back().hint = end.hint;
  const std::string how = describe_wait_status(wait_status) + end.hint;
  if (observer_ != nullptr) observer_->rank_ended(number, wait_status == 0, how);
  if (controller_ != nullptr) {
    controller_->rank_ended(end);
  } else {
    store_->mark_dead(static_cast<uint64_t>(number), describe_end(end));
  }
  narrate("rank " + std::to_string(number) + " " + how);
  lives_->ended(number);
  // What was told before the process was reaped gets its cause; what nobody saw is told now.
  if ((lost_ && lost_->rank == number) ||
      (lives_->has_not_left(number) && (wait_status != 0 || lives_->has_joined(number)))) {
    const bool by_us = lost_ ? lost_by_us_ : end.stopped;
    // A command that hides how the process in it ended tells nothing new.
    const bool hidden = lost_ && wait_status == 0 && lives_->has_joined_inside(number);
    const std::string cause = hidden ? lost_->cause.str() : how;
    rank_lost(
        lives_->verdict(number, end.pid, by_us ? "ruedarun stopped it: " + how : cause, true));
  }
  if (wait_status != 0) stop_for_failure();
}

void Agent::look_at_lives() {
  const LifeWatch::Findings findings = lives_->look(now());
  for (const std::string& remark : findings.remarks) say(remark);
  for (const life::LostRank& lost : findings.lost) rank_lost(lost);
}

// The one place through which a loss becomes known to the job, from wherever it was noticed. The
// first verdict stands; a newer one about the same rank says more of its cause.
//
// Over several hosts ranks may be lost on two of them at once: the controller decides which was the
// first, and its word comes back to us too (from_controller). Until then ours hear nothing, so that
// no two survivors ever hear of different ranks.
void Agent::rank_lost(const life::LostRank& lost, bool from_controller) {
  if (controller_ != nullptr && !from_controller) {
    controller_->rank_lost(lost);
    stop_for_failure();
    return;
  }
  if (lost_ && (lost_->rank != lost.rank || lost_->cause_is_final != 0)) return;
  const bool first = !lost_;
  lost_ = lost;
  lives_->tell(lost);
  if (!first) return;
  lost_by_us_ = supervisor_.stopping();
  narrate(lost.describe() + "; known at " + clock_text(lost.noticed_ns));
  if (controller_ == nullptr) store_->mark_dead(static_cast<uint64_t>(lost.rank), lost.describe());
  stop_for_failure();
}

// Ranks wait in init for those that have not called it. These may hang before, in an import or on a
// file server: the user hears of it long before RUEDA_START_TIMEOUT ends the job.
void Agent::look_for_late_ranks() {
  if (told_late_ || supervisor_.cause() != StopCause::kNone) return;
  std::vector<const RankProcess*> late;
  bool any_here = false;
  for (const auto& rank : ranks_) {
    if (!rank->running()) continue;
    if (lives_->has_joined(rank->place().rank))
      any_here = true;
    else
      late.push_back(rank.get());
  }
  if (!any_here || late.empty()) return waiting_since_.reset();
  if (!waiting_since_) waiting_since_ = now();
  if (now() - *waiting_since_ < to_duration(plan_.init_patience)) return;
  told_late_ = true;
  constexpr size_t kMostTold = 4;
  for (size_t i = 0; i < std::min(late.size(), kMostTold); ++i) {
    const std::string pid = std::to_string(late[i]->pid());
    say("rank " + std::to_string(late[i]->place().rank) + " (pid " + pid +
        ") has not called init, and others have waited " +
        std::to_string(static_cast<int>(plan_.init_patience)) + " s for it: " +
        process_activity(late[i]->pid()).text + "; its stack: py-spy dump --pid " + pid);
  }
  if (late.size() > kMostTold)
    say("nor have " + std::to_string(late.size() - kMostTold) + " other ranks");
}

void Agent::stop_for_failure() {
  if (supervisor_.cause() != StopCause::kNone) return;
  // A killed process may take long to give its memory back, while its peers notice its end at once
  // and exit first. Whoever is on its way out at this moment died together with this one.
  supervisor_.rank_failed(now());
  dying_number_ = noticed_;
  for (const auto& other : ranks_) {
    if (other->running() && is_exiting(other->pid())) dying_together_.insert(other->place().rank);
  }
}

void Agent::reap() {
  ++noticed_;
  int status = 0;
  rusage used{};
  for (pid_t pid = 0; (pid = wait4(-1, &status, WNOHANG, &used)) > 0;) {
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& candidate) {
      return candidate->running() && candidate->pid() == pid;
    });
    if (rank != ranks_.end())
      rank_ended(rank->get(), status, static_cast<uint64_t>(used.ru_maxrss) << 10);
  }
}

void Agent::send(int signal) {
  narrate("sending " + signal_name(signal) + " to what is left");
  replaced_ = replaced_ || (lost_ && lives_->was_replaced(lost_->rank));
  for (const auto& rank : ranks_) {
    rank->signal(signal);
    if (signal != SIGKILL) rank->signal(SIGCONT);  // a stopped process cannot end itself
  }
  last_sent_ = signal;
  swept_.clear();
  if (signal == SIGKILL && !give_up_at_) give_up_at_ = now() + kKillLimit;
}

bool Agent::finished() {
  const bool gave_up = give_up_at_ && now() >= *give_up_at_;
  if (!all_ended() && !gave_up) return false;
  // After the last rank: descendants that outlived their ranks have become our children. More
  // appear as these end, which wakes us with SIGCHLD.
  const std::vector<pid_t> left = children_of(getpid());
  if (left.empty()) return true;
  if (gave_up) {
    for (const pid_t pid : left)
      say("process " + std::to_string(pid) + " is stuck in the kernel and was left behind");
    return true;
  }
  supervisor_.leftovers_remain(now());
  for (const int signal : supervisor_.due(now())) send(signal);
  for (const pid_t pid : left) {
    if (last_sent_ == 0 || !swept_.insert(pid).second) continue;
    kill(pid, last_sent_);
    if (last_sent_ != SIGKILL) kill(pid, SIGCONT);
  }
  return false;
}

int Agent::run() {
  Status status = prepare();
  if (status.ok()) status = start_ranks();
  if (!status.ok()) {
    if (status.facts().limit == Limit::kDescriptors) {
      const size_t needed = 20 + 8 * plan_.places.size();
      status = status.with_message(status.message() + "; the agent needs about " +
                                   std::to_string(needed) + " for " +
                                   std::to_string(plan_.places.size()) + " ranks");
    }
    if (controller_ == nullptr) say(status.message());
    supervisor_.driver_lost(now());  // as if: kill what has been started
  }
  for (;;) {
    if (lives_) {
      look_at_lives();
      look_for_late_ranks();
    }
    reap();
    if (store_) answer_entries(&*epochs_, store_.get());
    for (const int signal : supervisor_.due(now())) send(signal);
    if (finished()) break;
    console_.flush();
    if (console_.stdout_closed()) supervisor_.output_closed(now());
    wait_for_events();
  }
  return finish(status);
}

// Whether somebody still waits for our end: not after two signals, or when the guard has gone.
bool Agent::is_wanted() {
  read_signals();
  check_guard();
  return guard_link_ && signals_received_ < 2;
}

// Our reader may be slow or stopped; a signal ends the wait for it.
void Agent::drain_console() {
  console_.release_lines();
  console_.flush();
  while (console_.pending() && guard_link_ && signals_received_ < 2) {
    std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}, {guard_link_.get(), POLLIN, 0}};
    console_.add_to_poll(&fds);
    poll(fds.data(), fds.size(), -1);
    if (fds[0].revents != 0) read_signals();
    if (fds[1].revents != 0) check_guard();
    console_.flush();
  }
}

int Agent::finish(const Status& started) {
  if (observer_ != nullptr) {
    observer_->stop();
    for (const std::string& line : observer_->take_lines()) say(line);
    const bool failed = (lost_ && lives_->has_joined_inside(lost_->rank)) ||
                        std::any_of(ends_.begin(), ends_.end(),
                                    [](const RankEnd& end) { return end.wait_status != 0; });
    if (controller_ == nullptr && failed && observer_->has_folder()) {
      for (const std::string& line : observer_->write_files()) say(line);
    }
  }
  if (controller_ != nullptr) {
    for (const auto& rank : ranks_) rank->drain();
    controller_->finish(started.message(),
                        [this](const std::vector<Order>& orders) { follow(orders); });
    if (controller_->controller_was_lost() && observer_ != nullptr && observer_->has_folder())
      observer_->write_files();  // nobody else can
    if (!started.ok()) return kLauncherFailure;
    return supervisor_.cause() == StopCause::kSignal ? 128 + supervisor_.cause_signal() : 0;
  }
  JobEnd job;
  std::map<Rank, wire::RankSummary> summaries;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i]->drain();
    job.last_words[ranks_[i]->place().rank] = outputs_[i]->last_words();
  }
  if (copies_) {
    for (const std::string& line : copies_->finish([this] { return is_wanted(); })) say(line);
  }
  if (store_ != nullptr) {
    store_->stop();
    for (const rendezvous::Report& report : store_->reports()) {
      const auto rank = static_cast<Rank>(report.member);
      if (report.key == "failure") job.reports.emplace_back(rank, report.value);
      wire::RankSummary summary;
      if (report.key == "summary" && wire::decode(report.value, &summary).ok())
        summaries[rank] = std::move(summary);
    }
  }
  if (!started.ok()) {  // has been said, and is nobody else's fault
    drain_console();
    return kLauncherFailure;
  }
  job.ends = ends_;
  if (lost_ && !lost_by_us_ && lives_->has_joined(lost_->rank)) {
    job.lost = *lost_;
    job.lost_inside = lives_->has_joined_inside(lost_->rank);
  }
  job.cause = supervisor_.cause();
  job.signal = supervisor_.cause_signal();
  for (const std::string& line : finish_timelines(plan_.timeline)) console_.say(line);
  if (plan_.summary) {
    for (const std::string& line :
         summary_report(summaries, static_cast<int>(ranks_.size()), job.ends))
      console_.say(line);
  }
  const Verdict verdict = judge(job);
  for (const std::string& line : verdict.lines) console_.say(line);
  drain_console();
  return verdict.exit_code;
}

}  // namespace

int run_agent(const AgentPlan& plan, UniqueFd guard_link, ControllerClient* controller) {
  return Agent(plan, std::move(guard_link), controller).run();
}

}  // namespace rueda::launcher

#include "launcher/agent/agent_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "collectives/base/config.h"
#include "collectives/base/signal_names.h"
#include "launcher/hosts/machine.h"
#include "launcher/job/auto_ranks.h"
#include "launcher/job/rank_environment.h"
#include "launcher/processes/spawn.h"

namespace rueda::launcher {

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

  const char* const nvml = find_variable(plan_.base_environment, "RUEDA_NVML_LIBRARY");
  if (nvml != nullptr || count_gpu_devices() > 0)
    gpus_ = std::make_unique<GpuHealth>(nvml == nullptr ? "" : nvml);
  RUEDA_ASSIGN_OR_RETURN(lives_, LifeWatch::create(plan_.host.empty() ? host_name() : plan_.host,
                                                   to_duration(plan_.dead_seconds)));
  RUEDA_ASSIGN_OR_RETURN(key_fd_, plan_.key->to_memfd());
  return controller_->open();
}

int Agent::pick_stdin(Rank rank) const {
  const Options& options = plan_.options;
  if (options.stdin_mode == Options::Stdin::kOneRank)
    return rank == options.stdin_rank ? STDIN_FILENO : null_.get();
  const bool terminal = options.stdin_mode == Options::Stdin::kAuto && plan_.terminal_stdin;
  return rank == 0 && terminal ? STDIN_FILENO : null_.get();
}

// A slot that had no rank to begin with is not bound.
RankBinding Agent::binding_of(const MemberStart& start) const {
  const auto slot = static_cast<size_t>(start.slot < 0 ? start.place.local_rank : start.slot);
  if (slot < plan_.bindings.size()) return plan_.bindings[slot];
  return {{}, plan_.bindings.empty() ? 1 : plan_.bindings.front().threads, "not bound"};
}

Status Agent::start_member(const MemberStart& start) {
  ranks_.push_back(
      std::make_unique<RankProcess>(start, controller_->output_of(start.member, start.place.rank)));
  Status status = start_process(ranks_.back().get(), binding_of(start));
  if (status.ok() || ranks_.back()->running()) return status;
  ranks_.pop_back();
  lives_->forget(start.member);
  if (observer_ != nullptr) observer_->forget(start.member);
  return status;
}

// Who takes over a job repeats its orders. What cannot be started the job goes on without, as its
// controller sees fit.
void Agent::start_late(const MemberStart& start) {
  if (!ordered_.insert(start.member).second) return;
  const bool stays = supervisor_.cause() == StopCause::kNone && !over_ && !finishing_;
  const Status status =
      stays ? start_member(start) : failed_precondition("the ranks of this host are being stopped");
  if (status.ok()) return;
  const std::string error =
      "rank " + std::to_string(start.place.rank) + " cannot be started: " + status.message();
  RankProcess* const rank = find(start.member);
  if (rank == nullptr) return controller_->rank_started(start, 0, error);
  // It runs already: what is told is its end, once it has come.
  say(error);
  rank->signal(SIGKILL);
}

Status Agent::start_process(RankProcess* rank, const RankBinding& binding) {
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

  RUEDA_ASSIGN_OR_RETURN(const LifeWatch::Handed life,
                         lives_->add(rank->member(), rank->place().rank));
  SpawnRequest request;
  request.program = plan_.program;
  request.arguments = plan_.options.command;
  const JobEnvironment job = {plan_.job_id, binding.threads, key_fd_.get(), plan_.elastic};
  MemberStart start = rank->start();
  if (start.host.empty()) start.host = plan_.host;  // an agent far away has one name
  request.environment = rank_environment(plan_.base_environment, job, start, rank_end.get());
  if (observer_ != nullptr) {
    const auto fd = observer_->add(rank->member(), rank->place().rank);
    if (fd.ok()) {
      set_variable(&request.environment, "RUEDA_FLIGHT_FD", std::to_string(fd.value()));
      request.inherited.push_back(fd.value());
    } else {
      narrate("hangs will not be explained: " + fd.status().message());
    }
  }
  request.cpus = binding.cpus;
  request.stdin_fd = pick_stdin(rank->place().rank);
  request.stdout_fd = out_write.get();
  request.stderr_fd = err_write.get();
  set_variable(&request.environment, "RUEDA_LIFE_FDS", life.variable);
  request.inherited.push_back(rank_end.get());
  request.inherited.push_back(key_fd_.get());
  request.inherited.insert(request.inherited.end(), life.fds.begin(), life.fds.end());
  request.hangup_stays_ignored = plan_.hangup_ignored;
  RUEDA_ASSIGN_OR_RETURN(const pid_t pid, spawn_rank(request));
  rank->started(pid, std::move(out_read), std::move(err_read));
  RUEDA_RETURN_IF_ERROR(lives_->started(rank->member(), pid));
  if (observer_ != nullptr) observer_->rank_started(rank->member(), pid);
  narrate("rank " + std::to_string(rank->place().rank) + " is pid " + std::to_string(pid) + ", " +
          binding.text);
  controller_->rank_started(rank->start(), pid, "");
  return controller_->attach(std::move(agent_end), rank->member());
}

Status Agent::start_ranks() {
  null_.reset(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_) return errno_status("cannot open /dev/null", errno);
  narrate("agent is pid " + std::to_string(getpid()) + ", job " + plan_.job_id + ", " +
          (plan_.elastic ? "elastic" : std::to_string(plan_.places.size())) + " x " +
          plan_.program);
  RUEDA_RETURN_IF_ERROR(start_observer());
  for (const RankPlace& place : plan_.places) {
    ordered_.insert(first_member(place.rank));
    RUEDA_RETURN_IF_ERROR(start_member({first_member(place.rank), place}));
  }
  return {};
}

void Agent::start_failed(const Status& why) {
  std::string text = why.message();
  if (why.facts().limit == Limit::kDescriptors) {
    const size_t needed = 20 + 8 * plan_.places.size();
    text += "; the agent needs about " + std::to_string(needed) + " for " +
            std::to_string(plan_.places.size()) + " ranks";
  }
  controller_->failed(text);
  supervisor_.driver_lost(time_now());  // as if: kill what has been started
}

// The job runs without one, too, but not without the metrics that somebody waits for.
Status Agent::start_observer() {
  ObserverPlan plan;
  plan.job_id = plan_.job_id;
  for (const std::string& word : plan_.options.command) {
    if (!plan.command.empty()) plan.command += ' ';
    plan.command += word;
  }
  plan.ranks = plan_.elastic ? static_cast<size_t>(plan_.options.num_proc) : plan_.places.size();
  plan.counts = !plan_.explains || plan_.options.elastic.evict_slow;
  const auto config =
      load_config([&](const char* name) { return find_variable(plan_.base_environment, name); });
  if (config.ok()) {
    plan.stall_seconds = plan_.explains ? config.value().stall_check_seconds : 0;
    plan.dump_stalls = config.value().stall_policy != "warn";
    plan.folder = config.value().flight_folder;
    if (config.value().stall_check_seconds > 0)
      plan.stalled_after = config.value().stall_check_seconds;
    plan.metrics_file = config.value().metrics_file;
    if (const std::string& at = config.value().metrics;
        !at.empty() && (plan_.explains || !config.value().metrics_all)) {
      RUEDA_ASSIGN_OR_RETURN(plan.metrics, HttpAddress::parse(at));
    }
    auto signals = parse_signals(config.value().preemption_signal);
    if (signals.ok()) drain_signals_ = std::move(signals).value();
    // SIGTERM and SIGINT mean other things to many a script.
    std::stable_partition(drain_signals_.begin(), drain_signals_.end(),
                          [](int signal) { return signal != SIGTERM && signal != SIGINT; });
  }
  const bool serves = plan.metrics.has_value();
  auto observer = JobObserver::start(std::move(plan));
  if (observer.ok()) {
    observer_ = std::move(observer).value();
    if (const std::string url = observer_->metrics_url(); !url.empty())
      say("metrics" + (plan_.host.empty() ? "" : " of host " + plan_.host) + ": " + url +
          "/metrics");
  } else if (serves) {
    return observer.status();
  } else {
    narrate("hangs will not be explained: " + observer.status().message());
  }
  return {};
}

}  // namespace rueda::launcher

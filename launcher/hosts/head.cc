#include "launcher/hosts/head.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "collectives/rendezvous/job_key.h"
#include "collectives/rendezvous/store_server.h"
#include "launcher/driver.h"
#include "launcher/exit_report.h"
#include "launcher/hosts/certificates.h"
#include "launcher/hosts/control_server.h"
#include "launcher/hosts/head_hosts.h"
#include "launcher/hosts/limits.h"
#include "launcher/hosts/lost_rank_wire.h"
#include "launcher/hosts/machine.h"
#include "launcher/hosts/start_command.h"
#include "launcher/hosts/starter.h"
#include "launcher/hosts/stream_relay.h"
#include "launcher/hosts/ticket.h"
#include "launcher/job_id.h"
#include "launcher/rank_environment.h"
#include "launcher/rank_output.h"
#include "launcher/summary_report.h"
#include "launcher/supervisor.h"
#include "proto/store_codec.h"

namespace rueda::launcher {
namespace {

using State = HeadHost::State;

constexpr std::chrono::seconds kTellMissing{10};
constexpr std::chrono::seconds kEndLimit{20};  // beyond the grace period, for agents to finish

TimePoint now() { return std::chrono::steady_clock::now(); }

class Head {
 public:
  Head(const HeadPlan& plan, GuardLink link)
      : plan_(plan),
        link_(std::move(link)),
        console_(plan.options.prefix, plan.options.prefix_timestamp,
                 find_variable(plan.base_environment, "NO_COLOR") == nullptr,
                 plan.options.num_proc),
        supervisor_(std::chrono::duration_cast<Duration>(
            std::chrono::duration<double>(plan.options.grace_seconds))) {}
  ~Head() {
    if (!token_file_.empty()) unlink(token_file_.c_str());
  }

  int run();

 private:
  Status prepare();
  Status open_store();
  Status start_agents(const std::string& ticket);
  Status write_token_file(const std::string& ticket);

  void wait_for_events();
  void read_signals();
  void take_events();
  void take_message(int host, const control::AgentMessage& message);
  void agent_here(int host, const control::Register& agent);
  void all_here();
  void all_probed();
  void tell_failure(int except);
  void rank_lost(int host, const LostRank& lost);
  void rank_ended(int host, const control::RankEnded& ended);
  void end_rank(RankEnd end, const std::string& text);
  void host_finished(HeadHost* host, const control::Finished& finished);
  void host_lost(int host, const std::string& why);
  void reap();
  void check_time();
  void broadcast(control::Order::Kind kind, int signal, int except = -1);
  void fail(int code, const std::string& text);
  bool all_over() const;
  int count(State state) const;
  bool started() const { return assigned_; }
  std::string where(int host) const { return hosts_[static_cast<size_t>(host)].name(); }
  void narrate(const std::string& text) {
    if (plan_.options.verbose) console_.say(text);
  }
  void say_goodbye();
  int finish();
  void drain_console();

  const HeadPlan& plan_;
  GuardLink link_;
  UniqueFd signals_;
  Console console_;
  Supervisor supervisor_;
  std::string job_id_, token_file_;
  std::optional<rendezvous::JobKey> key_;
  std::unique_ptr<rendezvous::StoreServer> store_;
  StreamRelay relay_;
  std::unique_ptr<ControlServer> server_;
  std::vector<std::unique_ptr<Starter>> starters_;  // by host, or one srun
  std::vector<HeadHost> hosts_;
  std::vector<std::unique_ptr<RankOutput>> outputs_;  // by rank
  std::map<Rank, int> host_of_, pids_;
  std::vector<ReachTry> tries_;
  std::vector<RankEnd> ends_;
  std::set<Rank> ended_;
  std::optional<LostRank> lost_;  // the job's first
  std::map<std::pair<int, int>, int> noticed_;  // (host, its number) -> ours
  int signals_received_ = 0;
  bool assigned_ = false, failure_told_ = false;
  int failure_ = 0;  // exit code of our own failure, which has been said
  TimePoint begun_ = now(), last_beat_ = now(), last_round_ = now(), last_told_ = now();
  std::optional<TimePoint> give_up_at_;
};

Status Head::prepare() {
  prctl(PR_SET_NAME, "ruedarun-head");
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD})
    sigaddset(&wanted, signal);
  if (!link_.hangup_ignored) sigaddset(&wanted, SIGHUP);
  signals_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return errno_status("cannot watch signals", errno);

  job_id_ = make_job_id();
  RUEDA_ASSIGN_OR_RETURN(key_, rendezvous::JobKey::make_random());
  remove_stale_parts(plan_.timeline);
  for (const HostPlan& host : plan_.hosts) {
    HeadHost entry;
    entry.plan = host;
    hosts_.push_back(std::move(entry));
  }
  RUEDA_RETURN_IF_ERROR(open_store());

  ControlServer::Setup setup;
  RUEDA_ASSIGN_OR_RETURN(setup.certificates, make_certificates(job_id_));
  RUEDA_ASSIGN_OR_RETURN(setup.token, make_token());
  RUEDA_ASSIGN_OR_RETURN(setup.addresses,
                         order_addresses(read_interfaces(), plan_.options.network_interfaces));
  const bool some_here = std::any_of(hosts_.begin(), hosts_.end(),
                                     [](const HeadHost& host) { return host.plan.ours; });
  if (some_here && !plan_.options.network_interfaces.empty()) setup.addresses.push_back("127.0.0.1");
  setup.version = plan_.version;
  setup.port = plan_.options.listen_port;
  for (const HeadHost& host : hosts_) setup.hosts.push_back(host.name());
  Ticket ticket;
  ticket.job_id = job_id_;
  ticket.token = setup.token;
  ticket.authority = setup.certificates.authority;
  ticket.certificate = setup.certificates.agent.certificate;
  ticket.private_key = setup.certificates.agent.private_key;
  RUEDA_ASSIGN_OR_RETURN(server_, ControlServer::start(std::move(setup)));
  ticket.addresses = server_->addresses();
  narrate("job " + job_id_ + ", " + std::to_string(plan_.options.num_proc) + " ranks on " +
          std::to_string(hosts_.size()) + " hosts; the driver listens on " +
          name_hosts(ticket.addresses));
  return start_agents(write_ticket(ticket));
}

// The store and the ranks' ends of their streams to it; their agents have the others.
Status Head::open_store() {
  RUEDA_ASSIGN_OR_RETURN(store_, rendezvous::StoreServer::start());
  const int ranks = plan_.options.num_proc;
  outputs_.resize(static_cast<size_t>(ranks));
  for (size_t host = 0; host < hosts_.size(); ++host) {
    for (const RankPlace& place : hosts_[host].plan.places) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return errno_status("cannot open a socket", errno);
      relay_.add(place.rank, UniqueFd(ends[1]));
      RUEDA_RETURN_IF_ERROR(store_->add(UniqueFd(ends[0]), place.rank));
      host_of_[place.rank] = static_cast<int>(host);
      auto output = std::make_unique<RankOutput>(place.rank, &console_);
      if (!plan_.options.output_folder.empty()) {
        RUEDA_ASSIGN_OR_RETURN(
            OutputCopy copy, OutputCopy::create(plan_.options.output_folder, place.rank, ranks));
        output->copy_to(std::move(copy));
      }
      outputs_[static_cast<size_t>(place.rank)] = std::move(output);
    }
  }
  return {};
}

Status Head::write_token_file(const std::string& ticket) {
  const std::string& path = plan_.options.token_file;
  unlink(path.c_str());
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file ||
      write(file.get(), ticket.data(), ticket.size()) != static_cast<ssize_t>(ticket.size())) {
    return errno_status("cannot write the token file " + path, errno);
  }
  token_file_ = path;
  console_.say("waiting for " + std::to_string(hosts_.size()) + " hosts; on each: ruedarun join " +
               server_->addresses().front() + " --token-file " + path);
  return {};
}

Status Head::start_agents(const std::string& ticket) {
  const Options& options = plan_.options;
  if (!options.token_file.empty()) return write_token_file(ticket);
  const std::string program = own_program();
  if (plan_.use_srun) {
    std::vector<std::string> names;
    for (const HeadHost& host : hosts_) names.push_back(host.name());
    RUEDA_ASSIGN_OR_RETURN(auto starter, Starter::start(name_hosts(names),
                                                        srun_command(names, program),
                                                        plan_.own_environment, ticket));
    starters_.push_back(std::move(starter));
    return {};
  }
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const HeadHost& host = hosts_[i];
    std::vector<std::string> command = {program, "agent", "--host-index", std::to_string(i)};
    if (!host.plan.ours) {
      StartRequest request;
      request.host = host.plan.host;
      request.host_index = static_cast<int>(i);
      request.program = options.remote_program.empty() ? program : options.remote_program;
      request.rsh_agent = options.rsh_agent;
      request.ssh_port = options.ssh_port;
      request.identity_file = options.identity_file;
      RUEDA_ASSIGN_OR_RETURN(command, start_command(request));
    }
    RUEDA_ASSIGN_OR_RETURN(
        auto starter, Starter::start(host.name(), command, plan_.own_environment, ticket));
    narrate("host " + host.name() + " is started by " + command.front() + " (pid " +
            std::to_string(starter->pid()) + ")");
    starters_.push_back(std::move(starter));
  }
  return {};
}

int Head::count(State state) const {
  return static_cast<int>(std::count_if(hosts_.begin(), hosts_.end(), [&](const HeadHost& host) {
    return host.state == state;
  }));
}

bool Head::all_over() const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [](const HeadHost& host) { return host.over(); });
}

// Our own failure: the job ends with this code, whatever ranks do.
void Head::fail(int code, const std::string& text) {
  if (failure_ == 0) {
    failure_ = code;
    console_.say(text);
  }
  supervisor_.driver_lost(now());
  broadcast(control::Order::KILL, 0);
}

void Head::broadcast(control::Order::Kind kind, int signal, int except) {
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (!hosts_[host].talks() || static_cast<int>(host) == except) continue;
    control::DriverMessage message;
    message.mutable_order()->set_kind(kind);
    message.mutable_order()->set_signal(signal);
    server_->send(static_cast<int>(host), std::move(message));
  }
}

void Head::wait_for_events() {
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0},
                             {link_.fd.get(), POLLIN, 0},
                             {server_ == nullptr ? -1 : server_->fd(), POLLIN, 0}};
  console_.add_to_poll(&fds);
  relay_.add_to_poll(&fds);
  for (const auto& starter : starters_) starter->add_to_poll(&fds);
  if (poll(fds.data(), fds.size(), static_cast<int>(kHeartbeat.count())) < 0) return;
  if (fds[0].revents != 0) read_signals();
  if (link_.fd && fds[1].revents != 0) {
    link_.fd.reset();
    fail(128 + SIGKILL, "the ruedarun process that the user started is gone");
  }
}

void Head::read_signals() {
  signalfd_siginfo info = {};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;  // reap() looks for itself
    if (signal == SIGUSR1 || signal == SIGUSR2) {
      broadcast(control::Order::USER_SIGNAL, signal);
      continue;
    }
    if (getppid() != link_.guard) continue;  // the kernel's message that the guard is gone
    ++signals_received_;
    supervisor_.signal_received(signal, now());
    broadcast(signals_received_ > 1 ? control::Order::KILL : control::Order::SIGNAL, signal);
    if (signals_received_ == 1) {
      console_.say(signal_name(signal) +
                   ": asking the ranks to stop (once more kills them at once)");
    }
    // Nothing runs yet that could stop by itself.
    if (!started() && failure_ == 0) fail(128 + signal, "stopped before the ranks were started");
  }
}

void Head::take_events() {
  if (server_ == nullptr) return;
  server_->hold_output(console_.congested());
  for (AgentEvent& event : server_->take()) {
    HeadHost& host = hosts_[static_cast<size_t>(event.host)];
    host.last_heard = now();
    switch (event.kind) {
      case AgentEvent::Kind::kRegistered:
        agent_here(event.host, event.message.register_());
        break;
      case AgentEvent::Kind::kMessage: take_message(event.host, event.message); break;
      case AgentEvent::Kind::kGone: host_lost(event.host, event.text); break;
      case AgentEvent::Kind::kOutput: {
        const auto& output = event.output;
        const auto known = host_of_.find(output.rank());
        if (output.stream() < 1 || output.stream() > 2 || known == host_of_.end() ||
            known->second != event.host) {
          break;
        }
        RankOutput& taker = *outputs_[static_cast<size_t>(output.rank())];
        const Stream stream = output.stream() == 1 ? Stream::kStdout : Stream::kStderr;
        if (!output.data().empty()) taker.take(stream, output.data());
        if (output.end()) taker.end(stream);
        break;
      }
    }
  }
}

void Head::take_message(int number, const control::AgentMessage& message) {
  HeadHost& host = hosts_[static_cast<size_t>(number)];
  const auto is_theirs = [&](Rank rank) {
    const auto known = host_of_.find(rank);
    return known != host_of_.end() && known->second == number;
  };
  if (message.has_probe_report() && host.state == State::kHere) {
    for (const auto& one : message.probe_report().tries())
      tries_.push_back({number, one.host_index(), one.address(), one.error()});
    host.state = State::kProbed;
    if (count(State::kProbed) == static_cast<int>(hosts_.size())) all_probed();
  } else if (message.has_rank_started() && is_theirs(message.rank_started().rank())) {
    pids_[message.rank_started().rank()] = message.rank_started().pid();
    narrate("rank " + std::to_string(message.rank_started().rank()) + " is pid " +
            std::to_string(message.rank_started().pid()) + " on " + host.name());
  } else if (message.has_rank_ended() && is_theirs(message.rank_ended().rank())) {
    rank_ended(number, message.rank_ended());
  } else if (message.has_rank_lost() && is_theirs(message.rank_lost().rank())) {
    rank_lost(number, from_wire(message.rank_lost()));
  } else if (message.has_store_bytes() && is_theirs(message.store_bytes().rank())) {
    const auto& bytes = message.store_bytes();
    relay_.deliver(bytes.rank(), bytes.data(), bytes.end());
  } else if (message.has_say()) {
    console_.say(host.name() + ": " + message.say().text());
  } else if (message.has_finished()) {
    host_finished(&host, message.finished());
  }
}

void Head::agent_here(int number, const control::Register& agent) {
  HeadHost& host = hosts_[static_cast<size_t>(number)];
  host.state = State::kHere;
  host.pid = agent.pid();
  host.probe_port = agent.probe_port();
  std::vector<InterfaceAddress> found;
  for (const auto& entry : agent.interfaces())
    found.push_back({entry.name(), entry.address(), entry.loopback(), entry.up()});
  auto ordered = order_addresses(found, plan_.options.network_interfaces);
  host.reach = {host.name(), agent.host_identity(),
                ordered.ok() ? std::move(ordered).value() : std::vector<std::string>()};
  narrate("host " + host.name() + " is here: agent pid " + std::to_string(agent.pid()) + ", " +
          std::to_string(agent.usable_cores()) + " cores");
  if (failure_ != 0) return broadcast(control::Order::KILL, 0);
  if (count(State::kHere) == static_cast<int>(hosts_.size())) all_here();
}

void Head::all_here() {
  server_->stop_listening();
  if (!token_file_.empty()) unlink(token_file_.c_str());
  token_file_.clear();
  for (size_t me = 0; me < hosts_.size(); ++me) {
    control::DriverMessage message;
    auto* task = message.mutable_probe_task();
    task->set_job_key(std::string(key_->bytes().begin(), key_->bytes().end()));
    task->set_job_id(job_id_);
    task->set_host_index(static_cast<int>(me));
    task->set_hosts(static_cast<int>(hosts_.size()));
    for (size_t other = 0; other < hosts_.size(); ++other) {
      if (other == me) continue;
      auto* target = task->add_targets();
      target->set_host_index(static_cast<int>(other));
      target->set_port(hosts_[other].probe_port);
      for (const std::string& address : hosts_[other].reach.addresses)
        target->add_addresses(address);
    }
    server_->send(static_cast<int>(me), std::move(message));
  }
}

void Head::all_probed() {
  std::vector<ReachHost> hosts;
  for (const HeadHost& host : hosts_) hosts.push_back(host.reach);
  std::vector<std::string> addresses(hosts_.size(), "127.0.0.1");
  if (hosts_.size() > 1 || !hosts_.front().plan.ours) {
    auto chosen = choose_addresses(hosts, tries_);
    if (!chosen.ok()) return fail(kUnreachable, chosen.status().message());
    addresses = std::move(chosen).value();
  }
  JobText job;
  job.job_id = job_id_;
  job.key = std::string(key_->bytes().begin(), key_->bytes().end());
  job.folder = plan_.folder;
  job.dead_seconds = plan_.dead_seconds;
  job.grace_seconds = plan_.options.grace_seconds;
  job.silence_seconds = plan_.options.silence_seconds;
  job.verbose = plan_.options.verbose;
  job.hangup_ignored = link_.hangup_ignored;
  std::vector<std::string> named = plan_.options.named_variables;
  for (const auto& [name, value] : plan_.options.environment) named.push_back(name);
  const auto environment = environment_for_hosts(plan_.base_environment, named);
  for (size_t i = 0; i < hosts_.size(); ++i) {
    job.address = addresses[i];
    narrate("ranks on " + hosts_[i].name() + " use address " + addresses[i]);
    control::DriverMessage message;
    *message.mutable_assign() = make_assignment(job, hosts_[i].plan, static_cast<int>(i),
                                                plan_.options.command, environment);
    server_->send(static_cast<int>(i), std::move(message));
    hosts_[i].state = State::kRunning;
  }
  assigned_ = true;
}

void Head::rank_ended(int host, const control::RankEnded& ended) {
  RankEnd end;
  end.rank = ended.rank();
  end.pid = ended.pid();
  end.wait_status = ended.wait_status();
  end.stopped = ended.stopped();
  end.host = where(host);
  end.hint = ended.hint();
  const auto number = noticed_.emplace(std::pair(host, ended.noticed()),
                                       static_cast<int>(noticed_.size()));
  end.noticed = number.first->second;
  end_rank(end, describe_end(end));
  tell_failure(host);
}

// The one place where the end of a rank, however it was learnt, becomes known to all others.
void Head::end_rank(RankEnd end, const std::string& text) {
  if (!ended_.insert(end.rank).second) return;
  store_->mark_dead(end.rank, text);
  narrate(text);
  if (end.wait_status != 0) supervisor_.rank_failed(now());
  ends_.push_back(std::move(end));
}

// Once: survivors everywhere may raise errors of their own and are stopped then.
void Head::tell_failure(int except) {
  if (failure_told_ || supervisor_.cause() != StopCause::kRankFailed) return;
  failure_told_ = true;
  broadcast(control::Order::RANK_FAILED, 0, except);
}

// The verdict on a lost rank: the first of the job goes to every host, so that all pending calls end
// with it; a newer version about the same rank has its cause.
void Head::rank_lost(int host, const LostRank& lost) {
  if (lost_ && (lost_->rank != lost.rank || lost_->cause_is_final != 0)) return;
  const bool first = !lost_;
  lost_ = lost;
  for (size_t other = 0; other < hosts_.size(); ++other) {
    if (!hosts_[other].talks() || static_cast<int>(other) == host) continue;
    control::DriverMessage message;
    *message.mutable_rank_lost() = to_wire(lost);
    server_->send(static_cast<int>(other), std::move(message));
  }
  if (!first) return;
  store_->mark_dead(lost.rank, lost.describe());
  supervisor_.rank_failed(now());
  tell_failure(host);
}

void Head::host_finished(HeadHost* host, const control::Finished& finished) {
  host->state = State::kFinished;
  narrate("host " + host->name() + " has finished");
  if (!finished.failure().empty())
    fail(finished.exit_code() == 0 ? kLauncherFailure : finished.exit_code(),
         "host " + host->name() + ": " + finished.failure());
}

void Head::host_lost(int number, const std::string& why) {
  HeadHost& host = hosts_[static_cast<size_t>(number)];
  if (host.over()) return;
  const bool ran = host.state == State::kRunning;
  host.state = State::kLost;
  const std::string text = "host " + host.name() + " (agent pid " + std::to_string(host.pid) +
                           ") is lost: " + why;
  if (!ran) {
    if (failure_ == 0) fail(kUnreachable, text);
    return;
  }
  console_.say(text);
  const bool first = supervisor_.cause() == StopCause::kNone;
  const int noticed = static_cast<int>(noticed_.size());
  noticed_.emplace(std::pair(number, -1), noticed);
  for (const RankPlace& place : host.plan.places) {
    if (ended_.contains(place.rank)) continue;
    RankEnd end;
    end.rank = place.rank;
    end.pid = pids_[place.rank];
    end.wait_status = SIGKILL;
    end.noticed = noticed;
    end.stopped = !first;
    end.host = host.name();
    end.lost = "lost with its host " + host.name() + " (" + why + ")";
    const std::string rank_text = describe_end(end);
    LostRank lost;
    lost.rank = end.rank;
    lost.pid = end.pid;
    lost.cause_is_final = 1;
    lost.host.set(host.name());
    lost.cause.set(end.lost);
    rank_lost(number, lost);
    end_rank(std::move(end), rank_text);
  }
  tell_failure(number);
  if (static_cast<size_t>(number) < starters_.size() && !plan_.use_srun)
    starters_[static_cast<size_t>(number)]->kill();
}

void Head::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    for (size_t i = 0; i < starters_.size(); ++i) {
      if (!starters_[i]->running() || starters_[i]->pid() != pid) continue;
      starters_[i]->ended(status);
      starters_[i]->pump([&](const std::string& line) {
        console_.say(starters_[i]->name() + ": " + line);
      });
      const bool awaited = plan_.use_srun ? count(State::kAwaited) > 0
                                          : hosts_[i].state == State::kAwaited;
      if (awaited && failure_ == 0) fail(kUnreachable, starters_[i]->describe());
    }
  }
  for (const auto& starter : starters_) {
    starter->pump([&](const std::string& line) { console_.say(starter->name() + ": " + line); });
  }
}

void Head::check_time() {
  const TimePoint at = now();
  // While we ourselves did not run nobody was silent.
  if (at - last_round_ > 2 * kHeartbeat) {
    for (HeadHost& host : hosts_) host.last_heard += at - last_round_;
  }
  last_round_ = at;
  if (at - last_beat_ >= kHeartbeat && server_ != nullptr) {
    last_beat_ = at;
    server_->beat();
  }
  supervisor_.due(at);  // the agents act; we remember that it has begun
  const auto limit = std::chrono::duration<double>(plan_.options.silence_seconds);
  for (size_t i = 0; i < hosts_.size(); ++i) {
    HeadHost& host = hosts_[i];
    if (host.state != State::kRunning) continue;
    const auto silent = at - host.last_heard;
    if (silent > limit) {
      std::ostringstream text;
      text << "no sign of life for " << plan_.options.silence_seconds << " s";
      host_lost(static_cast<int>(i), text.str());
    } else if (silent > kSuspectAfter && !host.suspect) {
      host.suspect = true;
      console_.say("host " + host.name() + " has given no sign of life for 1 s");
    } else if (silent < kSuspectAfter / 2 && host.suspect) {
      host.suspect = false;
      console_.say("host " + host.name() + " is back");
    }
  }
  if (!started() && failure_ == 0) {
    std::vector<std::string> missing;
    for (const HeadHost& host : hosts_) {
      if (host.state == State::kAwaited) missing.push_back(host.name());
    }
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(at - begun_);
    const std::string who =
        missing.empty() ? "for the hosts to reach each other"
                        : "for " + std::to_string(missing.size()) + " of " +
                              std::to_string(hosts_.size()) + " hosts: " + name_hosts(missing);
    if (waited.count() >= plan_.start_seconds) {
      fail(kStartTimeout, "gave up after " + std::to_string(waited.count()) +
                              " s (--start-timeout) of waiting " + who);
    } else if (at - last_told_ >= kTellMissing) {
      last_told_ = at;
      console_.say("waiting " + who);
    }
  }
  if (supervisor_.cause() != StopCause::kNone && !give_up_at_) {
    const auto grace = std::chrono::duration<double>(plan_.options.grace_seconds);
    give_up_at_ = at + 2 * std::chrono::duration_cast<Duration>(grace) + kEndLimit;
  }
  if (failure_ != 0) {
    for (HeadHost& host : hosts_) {
      if (host.state == State::kAwaited) host.state = State::kLost;
      if (!started() && host.state != State::kFinished) host.state = State::kLost;
    }
  }
  if (give_up_at_ && at > *give_up_at_) {
    for (size_t i = 0; i < hosts_.size(); ++i)
      host_lost(static_cast<int>(i), "its agent has not ended in time");
  }
}

void Head::say_goodbye() {
  if (server_ == nullptr) return;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    control::DriverMessage message;
    message.mutable_goodbye();
    server_->send(static_cast<int>(i), std::move(message));
  }
  // Agents leave by themselves; those that do not are killed with what started them (guard.h).
  const TimePoint until = now() + std::chrono::seconds(3);
  const auto any_left = [&] {
    return std::any_of(starters_.begin(), starters_.end(),
                       [](const auto& starter) { return starter->running(); });
  };
  for (reap(); any_left() && now() < until && signals_received_ < 2; reap()) {
    pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {server_->fd(), POLLIN, 0}};
    poll(fds, 2, 50);
    if (fds[0].revents != 0) read_signals();
    server_->take();
  }
  server_->stop();
}

// Our reader may be slow or stopped; a signal ends the wait for it.
void Head::drain_console() {
  console_.flush();
  while (console_.pending() && link_.fd && signals_received_ < 2) {
    std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}, {link_.fd.get(), POLLIN, 0}};
    console_.add_to_poll(&fds);
    poll(fds.data(), fds.size(), -1);
    if (fds[0].revents != 0) read_signals();
    if (fds[1].revents != 0) link_.fd.reset();
    console_.flush();
  }
}

int Head::finish() {
  say_goodbye();
  JobEnd job;
  std::map<Rank, wire::RankSummary> summaries;
  for (size_t rank = 0; rank < outputs_.size() && outputs_[rank] != nullptr; ++rank) {
    outputs_[rank]->end(Stream::kStdout);
    outputs_[rank]->end(Stream::kStderr);
    job.last_words[static_cast<Rank>(rank)] = outputs_[rank]->last_words();
  }
  if (failure_ != 0) {  // has been said
    drain_console();
    return failure_;
  }
  store_->stop();
  for (const rendezvous::Report& report : store_->reports()) {
    if (report.key == "failure") job.reports.emplace_back(report.rank, report.value);
    wire::RankSummary summary;
    if (report.key == "summary" && wire::decode(report.value, &summary).ok())
      summaries[report.rank] = std::move(summary);
  }
  job.ends = ends_;
  job.lost = lost_;
  job.cause = supervisor_.cause();
  job.signal = supervisor_.cause_signal();
  for (const std::string& line : finish_timelines(plan_.timeline)) console_.say(line);
  if (plan_.summary) {
    for (const std::string& line : summary_report(summaries, plan_.options.num_proc))
      console_.say(line);
  }
  const Verdict verdict = judge(job);
  for (const std::string& line : verdict.lines) console_.say(line);
  drain_console();
  return verdict.exit_code;
}

int Head::run() {
  const Status prepared = prepare();
  if (!prepared.ok()) {
    fail(prepared.code() == Code::kUnavailable ? kUnreachable : kLauncherFailure,
         prepared.message());
  }
  for (;;) {
    reap();
    take_events();
    relay_.pump([this](Rank rank, std::string_view bytes, bool end) {
      control::DriverMessage message;
      auto* carried = message.mutable_store_bytes();
      carried->set_rank(rank);
      carried->set_data(bytes.data(), bytes.size());
      carried->set_end(end);
      server_->send(host_of_[rank], std::move(message));
    });
    check_time();
    console_.flush();
    if (console_.stdout_closed() && supervisor_.cause() == StopCause::kNone) {
      supervisor_.output_closed(now());
      broadcast(control::Order::OUTPUT_CLOSED, 0);
    }
    if (all_over() || server_ == nullptr) break;
    wait_for_events();
  }
  return finish();
}

}  // namespace

int run_head(const HeadPlan& plan, GuardLink link) { return Head(plan, std::move(link)).run(); }

}  // namespace rueda::launcher

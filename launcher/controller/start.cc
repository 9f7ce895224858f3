#include "launcher/controller/job_controller.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "collectives/base/config.h"
#include "collectives/base/file_status.h"
#include "collectives/base/number_text.h"
#include "launcher/controller/certificates.h"
#include "launcher/hosts/host_environment.h"
#include "launcher/hosts/machine.h"
#include "launcher/hosts/report_wire.h"
#include "launcher/hosts/start_command.h"
#include "launcher/hosts/ticket.h"
#include "launcher/job/exit_code.h"
#include "launcher/job/job_id.h"
#include "launcher/job/rank_environment.h"

namespace rueda::launcher {

using State = JobHost::State;

Status JobController::prepare() {
  prctl(PR_SET_NAME, "ruedarun-ctrl");
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD})
    sigaddset(&wanted, signal);
  if (!link_.hangup_ignored) sigaddset(&wanted, SIGHUP);
  signals_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return errno_status("cannot watch signals", errno);

  taking_over_ = listens_for_late_ = assigned_ = plan_.succession->generation() > 0;
  for (const HostPlan& host : plan_.hosts) {
    JobHost entry;
    entry.plan = host;
    hosts_.push_back(std::move(entry));
  }
  while (hosts_.size() < plan_.succession->numbered_hosts()) {
    JobHost entry;
    entry.awaited_until = clock_now() + start_limit();
    entry.may_fail = true;
    hosts_.push_back(std::move(entry));
  }
  RUEDA_RETURN_IF_ERROR(open_observer());
  if (elastic()) listed_ = plan_.elastic->hosts;
  RUEDA_RETURN_IF_ERROR(open_store());

  ControlServer::Setup setup;
  setup.certificates = plan_.succession->certificates();
  setup.token = plan_.succession->token();
  if (taking_over_) setup.bound = plan_.succession->door();
  setup.takes_over = taking_over_;
  setup.resumes = may_come_back();
  RUEDA_ASSIGN_OR_RETURN(setup.addresses,
                         order_addresses(read_interfaces(), plan_.options.network_interfaces));
  const bool some_here =
      std::any_of(hosts_.begin(), hosts_.end(), [](const JobHost& host) { return host.plan.ours; });
  if (some_here && !plan_.options.network_interfaces.empty())
    setup.addresses.push_back("127.0.0.1");
  if (setup.addresses.empty() && !plan_.options.network_interfaces.empty()) {
    return unavailable("this machine: " +
                       none_allowed(read_interfaces(), plan_.options.network_interfaces));
  }
  setup.version = plan_.version;
  setup.port = plan_.options.listen_port;
  for (const JobHost& host : hosts_) setup.hosts.push_back(host.name());
  ticket_.job_id = job_id_;
  ticket_.token = setup.token;
  ticket_.authority = setup.certificates.authority;
  const std::vector<KeyPair> agents = setup.certificates.agents;
  RUEDA_ASSIGN_OR_RETURN(server_, ControlServer::start(std::move(setup)));
  ticket_.addresses = server_->addresses();
  if (taking_over_) return {};
  if (books_.on_terminal()) {
    say(counted(static_cast<size_t>(plan_.options.num_proc), "rank") +
        (elastic() ? " to begin with" : "") +
        (finds_hosts() ? "" : " on " + counted(hosts_.size(), "host")) +
        ", shared memory inside a host, TCP between hosts");
  }
  narrate("job " + job_id_ + ", " + std::to_string(plan_.options.num_proc) + " ranks on " +
          std::to_string(hosts_.size()) + " hosts; the controller listens on " +
          name_hosts(ticket_.addresses));
  for (const KeyPair& agent : agents) {
    Ticket ticket = ticket_;
    ticket.certificate = agent.certificate;
    ticket.private_key = agent.private_key;
    tickets_.push_back(write_ticket(ticket));
  }
  return start_agents();
}

Result<std::unique_ptr<Succession>> make_succession(const ControllerPlan& plan) {
  Succession::Setup setup;
  setup.hosts = static_cast<int>(plan.hosts.size());
  setup.one_ticket = plan.one_ticket();
  setup.elastic = plan.elastic.has_value();
  setup.has_next = setup.elastic && plan.options.elastic.driver_timeout_seconds > 0;
  setup.interfaces = plan.options.network_interfaces;
  setup.port = plan.options.listen_port;
  return Succession::make(setup);
}

// The store and the ranks' ends of their streams to it; their agents have the others.
Status JobController::open_store() {
  JobBooks::ElasticDoors doors;
  doors.tell = [this](const std::string& host, const Order& order) { tell(host, order); };
  doors.ready_hosts = [this](const std::vector<HostSlots>& found) { return ready_hosts(found); };
  doors.address_of = [this](const std::string& host) { return address_of(host); };
  if (elastic() && has_successor()) {
    doors.keep = [this](const std::string& record) { keep_record(record); };
    doors.journal = plan_.succession->journal();
    doors.takes_over = taking_over_;
  }
  RUEDA_RETURN_IF_ERROR(books_.open(std::move(doors)));
  for (size_t host = 0; host < hosts_.size(); ++host) {
    for (const RankPlace& place : hosts_[host].plan.places) {
      RUEDA_RETURN_IF_ERROR(add_member(static_cast<int>(host), {first_member(place.rank), place}));
    }
  }
  return {};
}

Status JobController::add_member(int host, const MemberStart& start) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return errno_status("cannot open a socket", errno);
  UniqueFd stores(ends[0]), relayed(ends[1]);
  RUEDA_RETURN_IF_ERROR(books_.attach(std::move(stores), start.member, where(host)));
  relay_.add(start.member, std::move(relayed));
  members_[start.member] = {host, start.place.rank, 0};
  books_.output_of(start.member, start.place.rank);
  observer_->add_member(host, start.member, start.place.rank);
  return {};
}

std::vector<Rank> JobController::ranks_of(int host) const {
  std::vector<Rank> ranks;
  for (const auto& [member, known] : members_) {
    if (known.host == host && !(elastic() && books_.has_ended(member))) ranks.push_back(known.rank);
  }
  return ranks;
}

Status JobController::open_observer() {
  HostsObserver::Setup setup;
  setup.job_id = job_id_;
  for (const std::string& word : plan_.options.command)
    setup.command += (setup.command.empty() ? "" : " ") + word;
  setup.ranks = static_cast<size_t>(plan_.options.num_proc);
  const auto config =
      load_config([&](const char* name) { return find_variable(plan_.base_environment, name); });
  if (config.ok()) {
    setup.stall_seconds = config.value().stall_check_seconds;
    setup.dump_stalls = config.value().stall_policy != "warn";
    setup.folder = config.value().flight_folder;
    if (const std::string& at = config.value().metrics; !at.empty() && config.value().metrics_all) {
      RUEDA_ASSIGN_OR_RETURN(setup.metrics, HttpAddress::parse(at));
    }
  }
  HostsObserver::Link link;
  link.send = [this](int host, control::ControllerMessage message) {
    server_->send(host, std::move(message));
  };
  link.can_be_asked = [this](int host) {
    const State state = hosts_[static_cast<size_t>(host)].state;
    return server_ != nullptr && (state == State::kRunning || state == State::kFinished);
  };
  link.hosts = [this] { return host_states(); };
  link.drain_host = [this](const std::string& host) { return drain_host(host); };
  link.drains_are_kept = [this] {
    const ElasticMembers* const members = books_.elastic();
    return members == nullptr || members->drains_are_kept();
  };
  observer_.emplace(std::move(setup), std::move(link));
  RUEDA_ASSIGN_OR_RETURN(const std::string url, observer_->open_metrics());
  if (!url.empty()) say("metrics of all hosts: " + url + "/metrics");
  return {};
}

std::vector<HostStatus> JobController::host_states() const {
  const TimePoint at = clock_now();
  std::vector<HostStatus> states;
  for (size_t number = 0; number < hosts_.size(); ++number) {
    const JobHost& host = hosts_[number];
    HostStatus one;
    one.name = host.name();
    switch (host.state) {
      case State::kAwaited: one.state = "waiting"; break;
      case State::kHere:
      case State::kProbed: one.state = "starting"; break;
      case State::kRunning:
        one.state = host.suspect                    ? "suspect"
                    : barred_.contains(host.name()) ? "leaving"
                                                    : "running";
        break;
      case State::kFinished: one.state = "finished"; break;
      case State::kLost: one.state = "lost"; break;
    }
    if (host.state != State::kAwaited) {
      one.silent_ms = std::max<int64_t>(
          0, std::chrono::duration_cast<std::chrono::milliseconds>(at - host.last_heard).count());
    }
    one.ranks = ranks_of(static_cast<int>(number));
    states.push_back(std::move(one));
  }
  return states;
}

Status JobController::write_token_file(const std::string& ticket) {
  const std::string& path = plan_.options.token_file;
  // One that a killed job has left behind may go; any other file is somebody's.
  std::ifstream old(path);
  std::string first;
  if (std::getline(old, first) && is_tickets_first_line(first)) unlink(path.c_str());
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file ||
      write(file.get(), ticket.data(), ticket.size()) != static_cast<ssize_t>(ticket.size())) {
    return file_status("cannot write the token file " + path +
                           (errno == EEXIST ? ", it is there already and no ticket" : ""),
                       path, ticket.size(), errno);
  }
  token_file_ = path;
  say("waiting for " + std::to_string(hosts_.size()) + " hosts; on each: ruedarun join " +
      server_->addresses().front() + " --token-file " + path);
  return {};
}

Status JobController::start_agents() {
  if (!plan_.options.token_file.empty()) return write_token_file(tickets_.front());
  if (plan_.use_srun) {
    std::vector<std::string> names;
    names.reserve(hosts_.size());
    for (const JobHost& host : hosts_) names.push_back(host.name());
    RUEDA_ASSIGN_OR_RETURN(
        auto starter, Starter::start(name_hosts(names), srun_command(names, own_program()),
                                     plan_.own_environment, tickets_.front(), has_successor()));
    starters_[0] = std::move(starter);
    return {};
  }
  if (plan_.nodes) {
    RUEDA_ASSIGN_OR_RETURN(ProofDoor door, hand_out_ticket(*plan_.nodes, tickets_.front()));
    ticket_door_.emplace(std::move(door));
  }
  const size_t ours = plan_.nodes ? 1 : hosts_.size();  // other nodes start themselves
  for (size_t i = 0; i < ours; ++i) {
    RUEDA_ASSIGN_OR_RETURN(auto starter, start_agent(i));
    starters_[i] = std::move(starter);
  }
  return {};
}

Result<std::unique_ptr<Starter>> JobController::start_agent(size_t number) {
  const Options& options = plan_.options;
  const JobHost& host = hosts_[number];
  const std::string program = own_program();
  std::vector<std::string> command = {program, "agent", "--host-index", std::to_string(number)};
  if (!host.plan.ours) {
    StartRequest request;
    request.host = host.plan.host;
    request.host_index = static_cast<int>(number);
    request.program = options.remote_program.empty() ? program : options.remote_program;
    request.rsh_agent = options.rsh_agent;
    request.ssh_port = options.ssh_port;
    request.identity_file = options.identity_file;
    RUEDA_ASSIGN_OR_RETURN(command, start_command(request));
  }
  auto starter = Starter::start(host.name(), command, plan_.own_environment, tickets_[number],
                                has_successor());
  if (starter.ok()) {
    narrate("host " + host.name() + " is started by " + command.front() + " (pid " +
            std::to_string(starter.value()->pid()) + ")");
  }
  return starter;
}

// Those whose pause is over.
void JobController::start_late_hosts(TimePoint at) {
  for (size_t i = 0; i < hosts_.size() && failure_ == 0; ++i) {
    if (!hosts_[i].again_at || at < *hosts_[i].again_at) continue;
    hosts_[i].again_at.reset();
    auto starter = start_agent(i);
    if (!starter.ok() && hosts_[i].may_fail)
      return drop(static_cast<int>(i), starter.status().message());
    if (!starter.ok()) return fail(kUnreachable, starter.status().message());
    starters_[i] = std::move(starter).value();
  }
}

}  // namespace rueda::launcher

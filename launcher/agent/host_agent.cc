#include "launcher/agent/host_agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>

#include "launcher/agent/agent.h"
#include "launcher/agent/grpc_controller_client.h"
#include "launcher/agent/lasting_connection.h"
#include "launcher/binding/host_binding.h"
#include "launcher/hosts/clocks.h"
#include "launcher/hosts/machine.h"
#include "launcher/hosts/member_wire.h"
#include "launcher/hosts/reach_wire.h"
#include "launcher/job/exit_code.h"
#include "launcher/job/rank_environment.h"
#include "launcher/processes/guard.h"
#include "launcher/processes/spawn.h"

namespace rueda::launcher {
namespace {

constexpr std::chrono::seconds kConnectLimit{10};
constexpr std::chrono::minutes kAssignLimit{60};
constexpr std::chrono::seconds kCloseLimit{2};

struct AgentArguments {
  int host_index = -1;
  std::string name;        // of this host, as the job's list has it
  std::string address;     // join: the controller's
  std::string token_file;  // join
  bool named = false;      // by --name
  bool join = false;
  bool started_by_user = false;  // our exit code tells how the job ended
};

Result<AgentArguments> parse(const std::vector<std::string>& words,
                             const std::vector<std::string>& environment) {
  AgentArguments out;
  out.join = out.started_by_user = words.front() == "join";
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool last = i + 1 == words.size();
    if (word == "--host-index" && !last) {
      const std::string& text = words[++i];
      const auto [end, error] =
          std::from_chars(text.data(), text.data() + text.size(), out.host_index);
      if (error != std::errc() || *end != '\0')
        return invalid_argument("--host-index '" + text + "': expected a number");
    } else if (word == "--token-file" && !last) {
      out.token_file = words[++i];
    } else if (word == "--name" && !last) {
      out.name = words[++i];
      out.named = true;
    } else if (word == "--slurm") {
      const char* node = find_variable(environment, "SLURMD_NODENAME");
      out.name = node == nullptr ? "" : node;
    } else if (out.join && word[0] != '-' && out.address.empty()) {
      out.address = word;
    } else {
      return invalid_argument("unexpected '" + word +
                              "'; ruedarun join [HOST:PORT] --token-file F");
    }
  }
  if (out.join && out.token_file.empty())
    return invalid_argument("ruedarun join needs --token-file F, the file that ruedarun wrote");
  if (out.name.empty()) out.name = host_name();
  return out;
}

// All of a stream up to the ticket's last line.
Result<std::string> read_until_end(int fd) {
  std::string text;
  char bytes[4096];
  while (!text.ends_with(kTicketEnd)) {
    const ssize_t got = read(fd, bytes, sizeof(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status("the ticket cannot be read", errno);
    if (got == 0) return invalid_argument("the ticket ends early");
    text.append(bytes, static_cast<size_t>(got));
    if (text.size() > kMaxTicketBytes) return invalid_argument("the ticket is too long");
  }
  return text;
}

Result<Ticket> find_ticket(const AgentArguments& arguments) {
  UniqueFd file;
  if (arguments.join) {
    file.reset(open(arguments.token_file.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info = {};
    if (!file || fstat(file.get(), &info) != 0)
      return errno_status("cannot read the token file " + arguments.token_file, errno);
    if ((info.st_mode & 077) != 0) {
      return invalid_argument("others can read " + arguments.token_file + "; chmod 600 " +
                              arguments.token_file);
    }
  }
  RUEDA_ASSIGN_OR_RETURN(const std::string text,
                         read_until_end(arguments.join ? file.get() : STDIN_FILENO));
  RUEDA_ASSIGN_OR_RETURN(Ticket ticket, read_ticket(text));
  if (!arguments.address.empty()) {
    RUEDA_ASSIGN_OR_RETURN(ticket.addresses, resolve_address(arguments.address));
  }
  return ticket;
}

// A signal that asks us to stop and that nobody reads yet: the guard has blocked them. 0: none.
int stop_signal() {
  sigset_t waiting;
  sigpending(&waiting);
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGHUP}) {
    if (sigismember(&waiting, signal) == 1) return signal;
  }
  return 0;
}

// The agent's part of a job until the ranks are to be started.
class Introduction {
 public:
  Introduction(ControlConnection* client, const GuardLink& link) : client_(client), link_(link) {}

  Result<control::Assign> run(const AgentArguments& arguments, const std::string& version) {
    RUEDA_ASSIGN_OR_RETURN(listener_, ReachListener::start());
    introduce(arguments, version);
    const auto deadline = std::chrono::steady_clock::now() + kAssignLimit;
    while (std::chrono::steady_clock::now() < deadline) {
      std::vector<control::ControllerMessage> messages = client_->take();
      for (auto it = messages.begin(); it != messages.end(); ++it) {
        if (it->has_probe_task()) reach(it->probe_task());
        if (it->has_goodbye()) {
          job_code_ = it->goodbye().exit_code();
          return cancelled("");
        }
        if (!it->has_assign()) continue;
        control::Assign assign = it->assign();
        client_->put_back({std::next(it), messages.end()});  // the controller's
        return assign;
      }
      if (client_->gone()) return unavailable(client_->why_gone());
      pollfd fds[2] = {{client_->fd(), POLLIN, 0}, {link_.fd.get(), POLLIN, 0}};
      poll(fds, 2, 1000);
      if (fds[1].revents != 0 || stop_signal() != 0) return cancelled("");
    }
    return deadline_exceeded("the controller has said nothing for too long");
  }

  // Of a job that has ended before it began.
  int job_code() const { return job_code_; }
  // As we have introduced ourselves.
  const control::AgentMessage& registration() const { return registration_; }

 private:
  void introduce(const AgentArguments& arguments, const std::string& version) {
    control::AgentMessage message;
    auto* me = message.mutable_register_();
    me->set_version(version);
    me->set_host_index(arguments.host_index);
    me->set_host_name(arguments.name);
    me->set_named(arguments.named);
    me->set_host_identity(machine_identity());
    me->set_pid(getpid());
    me->set_usable_cores(count_usable_cores());
    me->set_probe_port(listener_->port());
    for (const InterfaceAddress& entry : read_interfaces()) {
      auto* added = me->add_interfaces();
      added->set_name(entry.interface);
      added->set_address(entry.address);
      added->set_loopback(entry.loopback);
      added->set_up(entry.up);
    }
    registration_ = message;
    client_->send(std::move(message));
  }

  void reach(const control::ProbeTask& task) {
    const auto key = key_from(task.job_key());
    if (!key.ok()) return;
    listener_->answer_as(task.host_index(), task.hosts(), task.job_id(), key.value());
    client_->send(reach_all(task, key.value()));
  }

  ControlConnection* const client_;
  const GuardLink& link_;
  std::unique_ptr<ReachListener> listener_;
  control::AgentMessage registration_;
  int job_code_ = 0;
};

// What the controller sent, and this host's own variables where they belong to the host.
std::vector<std::string> environment_here(const control::Assign& assign,
                                          const std::vector<std::string>& ours) {
  std::vector<std::string> environment(assign.environment().begin(), assign.environment().end());
  for (const std::string& name : assign.own_variables()) {
    const char* value = find_variable(ours, name);
    if (value != nullptr) set_variable(&environment, name, value);
  }
  return environment;
}

// A node's ranks have the environment of its own command, and of the controller only what differs.
std::vector<std::string> environment_of_node(const control::Assign& assign,
                                             std::vector<std::string> base) {
  const std::vector<std::string> sent(assign.environment().begin(), assign.environment().end());
  for (const char* name : {"RUEDA_TCP_ADDRESS", "HOROVOD_HOSTNAME"}) {
    const char* value = find_variable(sent, name);
    if (value != nullptr && find_variable(base, name) == nullptr) set_variable(&base, name, value);
  }
  return base;
}

Result<AgentPlan> make_plan(const control::Assign& assign, const GuardLink& link,
                            std::vector<std::string> environment, int* exit_code) {
  AgentPlan plan;
  *exit_code = kLauncherFailure;
  RUEDA_ASSIGN_OR_RETURN(plan.key, key_from(assign.job_key()));
  plan.job_id = assign.job_id();
  plan.host = assign.host_name();
  plan.dead_seconds = assign.dead_seconds();
  plan.options.command = {assign.command().begin(), assign.command().end()};
  plan.options.grace_seconds = assign.grace_seconds();
  plan.options.verbose = assign.verbose();
  plan.options.stdin_mode = Options::Stdin::kNobody;
  for (const auto& place : assign.places()) plan.places.push_back(from_wire(place));
  plan.elastic = assign.elastic();
  if (plan.places.empty() != plan.elastic || plan.options.command.empty())
    return internal_error("the controller's assignment is empty");
  plan.options.num_proc = plan.elastic ? assign.num_proc() : plan.places.front().size;
  plan.base_environment = std::move(environment);
  auto bindings = bind_here(assign.bind(),
                            plan.elastic ? assign.slots() : static_cast<int>(plan.places.size()));
  if (!bindings.ok()) {
    *exit_code = kUsageError;
    return bindings.status();
  }
  plan.bindings = std::move(bindings).value();
  plan.guard = link.guard;
  plan.hangup_ignored = assign.hangup_ignored();
  if (chdir(assign.folder().c_str()) != 0) {
    return errno_status("the folder " + assign.folder() + " cannot be entered there", errno);
  }
  const ResolvedCommand command =
      resolve_command(plan.options.command.front(), find_variable(plan.base_environment, "PATH"));
  if (command.exit_code != 0) {
    *exit_code = command.exit_code;
    return failed_precondition(command.reason);
  }
  plan.program = command.path;
  return plan;
}

// Where the ranks could not be started: there is nobody to tell of.
class HostWithoutRanks : public ControlledHost {
 public:
  explicit HostWithoutRanks(ControllerClient* controller) : controller_(controller) {}
  void follow(const Order& order) override {
    if (order.kind == Order::Kind::kObserve) controller_->report({order.question.round, 0, {}});
  }
  HostEnd end() const override { return {}; }
  bool is_wanted() override { return true; }
  void add_to_poll(std::vector<pollfd>*) const override {}

 private:
  ControllerClient* const controller_;
};

// What the ranks are given here, once the controller has said its part.
using Environment = std::function<std::vector<std::string>(const control::Assign&)>;

int work(const Ticket& ticket, const AgentArguments& arguments, const Environment& environment,
         const std::string& version, GuardLink link) {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(null.get(), STDIN_FILENO);
  const std::string differs = why_not_now(ticket.authority, time(nullptr));
  if (!differs.empty()) return fail(kUnreachable, differs);
  auto client = ControlConnection::connect(ticket, kConnectLimit);
  if (!client.ok()) return fail(kUnreachable, client.status().message());
  Introduction introduction(client.value().get(), link);
  const auto assign = introduction.run(arguments, version);
  if (!assign.ok()) {
    if (assign.status().code() == Code::kCancelled) {
      if (stop_signal() != 0) return 128 + stop_signal();
      return arguments.started_by_user ? introduction.job_code() : 0;
    }
    return fail(kUnreachable,
                "the controller has not taken this host: " + assign.status().message());
  }
  if (assign.value().door_addresses_size() > 0) {
    const double driver_timeout = assign.value().driver_timeout();
    const bool has_next = driver_timeout > 0;
    const std::chrono::duration<double> patience(has_next ? driver_timeout
                                                          : assign.value().silence_seconds());
    client = LastingConnection::make(
        std::move(client).value(),
        {ticket, introduction.registration(), assign.value(), patience, has_next});
    if (!client.ok()) return fail(kLauncherFailure, client.status().message());
  }
  GrpcControllerClient controller(client.value().get(), assign.value().silence_seconds());
  client.value()->open_output(assign.value().host_index());
  int exit_code = 0;
  const auto plan = make_plan(assign.value(), link, environment(assign.value()), &exit_code);
  if (!plan.ok()) {
    HostWithoutRanks host(&controller);
    controller.serve(&host);
    controller.set_failure_code(exit_code);
    controller.failed(plan.status().message());
    controller.finish();
    return exit_code;
  }
  controller.set_failure_code(kLauncherFailure);
  int code = run_agent(plan.value(), std::move(link.fd), &controller);
  // Who started us by ssh or srun hears of the job's end from the controller, not by us as well.
  // Who waits for this command hears what ruedarun itself would say.
  if (!arguments.started_by_user)
    code = code == kLauncherFailure ? code : 0;
  else if (code == 0)
    code = controller.job_code().value_or(kUnreachable);
  // A write that nobody takes holds up gRPC's teardown until TCP gives up, over a black hole for
  // minutes. Nothing of the job is left then.
  if (!client.value()->close(kCloseLimit)) _exit(code);
  return code;
}

}  // namespace

int run_host_agent(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment, const std::string& version) {
  const auto parsed = parse(arguments, environment);
  if (!parsed.ok()) return fail(kUsageError, parsed.status().message());
  ensure_standard_descriptors();
  return guard("agent", [&](GuardLink link) {
    const auto ticket = find_ticket(parsed.value());
    if (!ticket.ok()) return fail(kUsageError, ticket.status().message());
    const auto here = [&](const control::Assign& assign) {
      return environment_here(assign, environment);
    };
    return work(ticket.value(), parsed.value(), here, version, std::move(link));
  });
}

int run_node_agent(const NodeAgent& node, const std::string& version) {
  return guard("agent", [&](GuardLink link) {
    AgentArguments arguments;
    arguments.host_index = node.door.nodes.rank;
    arguments.name = node_name(node.door.nodes.rank);
    arguments.started_by_user = true;
    if (node.verbose)
      fail(0, "this is " + arguments.name + "; it asks node 0 for the job's ticket");
    const auto text = fetch_ticket(
        node.door, node.limit, [](const std::string& line) { fail(0, line); },
        [] { return stop_signal() != 0; });
    if (text.status().code() == Code::kCancelled) return 128 + stop_signal();
    if (!text.ok()) {
      const bool late = text.status().code() == Code::kDeadlineExceeded;
      return fail(late ? kStartTimeout : kUnreachable, text.status().message());
    }
    const auto ticket = read_ticket(text.value());
    if (!ticket.ok()) return fail(kUnreachable, ticket.status().message());
    const auto here = [&](const control::Assign& assign) {
      return environment_of_node(assign, node.base);
    };
    return work(ticket.value(), arguments, here, version, std::move(link));
  });
}

}  // namespace rueda::launcher

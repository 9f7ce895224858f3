#include "launcher/driver.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>

#include "collectives/base/config.h"
#include "launcher/agent/host_agent.h"
#include "launcher/binding/host_binding.h"
#include "launcher/controller/controller.h"
#include "launcher/elastic_job.h"
#include "launcher/hosts/machine.h"
#include "launcher/job/exit_code.h"
#include "launcher/job/master_variables.h"
#include "launcher/mpi/run_mpi.h"
#include "launcher/observe/http_door.h"
#include "launcher/one_host.h"
#include "launcher/processes/discovery.h"
#include "launcher/processes/guard.h"
#include "launcher/processes/spawn.h"
#include "launcher/surroundings.h"
#include "runtime/observe/timeline/timeline_file.h"

namespace rueda::launcher {
namespace {

// When we run inside a rank of another ruedarun, its socket, key, life page and recorder came with
// the environment. A copy of the socket kept open here would hide that rank's end from its agent,
// and our ranks have no business with any.
void close_descriptors_of_outer_job(const std::vector<std::string>& environment) {
  for (const char* name : {"RUEDA_AGENT_FD", "RUEDA_KEY_FD", "RUEDA_LIFE_FDS", "RUEDA_FLIGHT_FD"}) {
    const char* value = find_variable(environment, name);
    if (value == nullptr) continue;
    std::istringstream numbers(value);  // "7" or "7,8,9"
    for (std::string number; std::getline(numbers, number, ',');) {
      if (const int fd = std::atoi(number.c_str()); fd > STDERR_FILENO) close(fd);
    }
  }
}

bool is_file(const std::string& path) {
  struct stat info = {};
  return !path.empty() && stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// A job in the background must not take the shell's input.
bool terminal_is_ours() {
  if (isatty(STDIN_FILENO) != 1) return false;
  const pid_t foreground = tcgetpgrp(STDIN_FILENO);
  return foreground < 0 || foreground == getpgrp();
}

// Of relative paths. A folder that has been removed has no name any more.
Result<std::string> own_folder() {
  std::error_code error;
  std::string folder = std::filesystem::current_path(error).string();
  if (error)
    return failed_precondition("the folder that ruedarun was started in is gone: " +
                               error.message());
  return folder;
}

// The flight recorders' files are written when a rank has failed, perhaps days later: too late to
// hear of it.
Status can_be_made(const std::string& folder) {
  std::error_code error;
  std::filesystem::path there = folder;
  while (!there.empty() && !std::filesystem::exists(there, error)) there = there.parent_path();
  if (there.empty()) there = ".";
  const int why = !std::filesystem::is_directory(there, error) ? ENOTDIR
                  : access(there.c_str(), W_OK | X_OK) != 0    ? errno
                                                               : 0;
  return why == 0 ? Status()
                  : errno_status("RUEDA_FLIGHT_RECORDER='" + folder + "': cannot be written", why);
}

bool over_several_hosts(const std::vector<HostPlan>& hosts, const Options& options) {
  return hosts.size() != 1 || !hosts.front().ours || !options.token_file.empty();
}

// Of the job, wherever its ranks run.
struct JobPlan : BooksPlan {
  double dead_seconds = 5;
  double init_patience = AgentPlan().init_patience;
  bool terminal_stdin = false;
};

int run_on_hosts(JobPlan plan, std::vector<HostPlan> hosts, bool slurm,
                 std::optional<NodeDoor> nodes, const std::vector<std::string>& environment,
                 const std::string& version, double start_seconds) {
  if (plan.options.stdin_mode == Options::Stdin::kOneRank)
    return fail(kUsageError, "--stdin RANK works on one host only");
  ControllerPlan controller;
  controller.hosts = std::move(hosts);
  controller.base_environment = std::move(plan.base_environment);
  controller.own_environment = environment;
  const auto folder = own_folder();
  if (!folder.ok()) return fail(kUsageError, folder.status().message());
  controller.folder = folder.value();
  controller.version = version;
  controller.start_seconds = start_seconds;
  controller.use_srun = slurm && plan.options.rsh_agent.empty() && plan.options.token_file.empty();
  controller.nodes = std::move(nodes);
  controller.timeline = plan.timeline;
  controller.summary = plan.summary;
  controller.dead_seconds = plan.dead_seconds;
  controller.elastic = std::move(plan.elastic);
  controller.options = std::move(plan.options);
  auto succession = make_succession(controller);
  if (!succession.ok()) return fail(kLauncherFailure, succession.status().message());
  controller.succession = std::move(succession).value();
  GuardedAgain again;
  again.before_each = [&] { controller.succession->prepare_next(); };
  again.again = [&] { return controller.succession->may_follow(std::chrono::steady_clock::now()); };
  again.over = [&] { return controller.succession->job_code(); };
  return guard(
      "controller", [&](GuardLink link) { return run_controller(controller, std::move(link)); },
      GuardedGroup::kOwn, again);
}

// The same command runs on every node: node 0 leads, the others come to it.
int run_on_nodes(JobPlan plan, std::vector<HostPlan> hosts, const TorchNodes& nodes,
                 const std::vector<std::string>& environment, const std::string& version,
                 const Config& config) {
  if (plan.options.mpi)
    return fail(kUsageError, "--mpi: mpirun does not start ranks on nodes of PET_NNODES");
  if (config.key_file.empty()) return fail(kUsageError, no_key_for_nodes(nodes));
  const auto key = rendezvous::JobKey::read_file(config.key_file);
  if (!key.ok()) return fail(kUsageError, key.status().message());
  const NodeDoor door{nodes, key.value()};
  if (nodes.rank == 0) {
    return run_on_hosts(std::move(plan), std::move(hosts), false, door, environment, version,
                        config.start_timeout_seconds);
  }
  NodeAgent node{door, std::chrono::duration<double>(config.start_timeout_seconds),
                 std::move(plan.base_environment), plan.options.verbose};
  return run_node_agent(node, version);
}

int run_under_mpi(const JobPlan& plan, std::vector<HostPlan> hosts, const FoundHosts& found) {
  MpirunRequest request;
  request.options = plan.options;
  request.hosts_given = !found.hosts.empty();
  request.several_hosts = over_several_hosts(hosts, plan.options);
  request.hosts = std::move(hosts);
  request.own_host = host_name();
  std::random_device random;
  request.rendezvous_port = std::uniform_int_distribution(20000, 29999)(random);
  int most_ranks = 1;
  for (const HostPlan& host : request.hosts)
    most_ranks = std::max(most_ranks, static_cast<int>(host.places.size()));
  const auto unbound = bind_here("none", most_ranks);
  if (unbound.ok()) request.threads = unbound.value().front().threads;
  request.root = geteuid() == 0;
  request.terminal_stdin = plan.terminal_stdin;
  request.environment = plan.base_environment;
  return run_mpi(std::move(request));
}

}  // namespace

int run_driver(Options options, const std::vector<std::string>& environment,
               const std::string& version) {
  ensure_standard_descriptors();
  close_descriptors_of_outer_job(environment);
  if (is_file(options.hosts)) {
    return fail(kUsageError, "-H '" + options.hosts +
                                 "' is a file; -H takes host:slots,... (-H localhost:" +
                                 std::to_string(std::max(options.num_proc, 1)) + ")");
  }
  if (const std::string& script = options.elastic.discovery_script; !script.empty()) {
    const Status usable = check_discovery_script(script, find_variable(environment, "PATH"));
    if (!usable.ok()) return fail(kUsageError, usable.message());
  }
  const auto standing = look_around(environment, &options);
  if (!standing.ok()) return fail(kUsageError, standing.status().message());
  const FoundHosts& found = standing.value().hosts;
  const std::optional<TorchNodes>& nodes = standing.value().nodes;
  const bool elastic = options.elastic.elastic();
  auto hosts = plan_hosts(options.num_proc, found.hosts, standing.value().own_names, found.source);
  if (!hosts.ok()) return fail(kUsageError, hosts.status().message());
  if (!standing.value().said.empty())
    std::fprintf(stderr, "ruedarun: %s\n", standing.value().said.c_str());
  JobPlan plan;
  plan.options = options;
  plan.base_environment = base_environment(environment, options);
  if (nodes) {
    set_torch_variables(*nodes, &plan.base_environment);
  } else if (!options.mpi) {
    set_master_variables(hosts.value(), &plan.base_environment);
  }
  plan.terminal_stdin = terminal_is_ours();

  // A wrong setting would fail in every rank; here it fails once.
  const auto get = [&](const char* name) { return find_variable(plan.base_environment, name); };
  const auto config = load_config(get);
  if (!config.ok()) return fail(kUsageError, config.status().message());
  // NCCL (2.30) takes ranks that share a GPU for a mistake unless it is told.
  if (config.value().ranks_per_gpu > 1 && get("NCCL_MULTI_RANK_GPU_ENABLE") == nullptr)
    set_variable(&plan.base_environment, "NCCL_MULTI_RANK_GPU_ENABLE", "1");
  if (!config.value().flight_folder.empty()) {
    const Status status = can_be_made(config.value().flight_folder);
    if (!status.ok()) return fail(kUsageError, status.message());
  }
  if (const std::string& at = config.value().metrics; !at.empty()) {
    const auto address = HttpAddress::parse(at);
    if (!address.ok()) return fail(kUsageError, address.status().message());
  } else if (config.value().metrics_all) {
    return fail(
        kUsageError,
        "--metrics-all says whose metrics are served, and --metrics PORT where: it is missing");
  }
  plan.summary = config.value().summary;
  plan.dead_seconds = config.value().dead_seconds;
  plan.init_patience = std::min(plan.init_patience, config.value().start_timeout_seconds / 2);
  plan.timeline = {config.value().timeline, config.value().timeline_all_ranks, options.num_proc};
  if (timeline::timeline_file(plan.timeline.path, true, 0) && plan.timeline.path[0] != '/') {
    // A rank may change its folder before it opens the file.
    const auto folder = own_folder();
    if (!folder.ok()) return fail(kUsageError, folder.status().message());
    plan.timeline.path = folder.value() + "/" + plan.timeline.path;
    set_variable(&plan.base_environment, "RUEDA_TIMELINE", plan.timeline.path);
  }

  if (nodes) {
    return run_on_nodes(std::move(plan), std::move(hosts).value(), *nodes, environment, version,
                        config.value());
  }
  if (options.mpi) {
    const ResolvedCommand command = resolve_command(options.command.front(), get("PATH"));
    if (command.exit_code != 0) return fail(command.exit_code, command.reason);
    return run_under_mpi(plan, std::move(hosts).value(), found);
  }
  if (elastic) {
    plan.elastic = elastic_plan(options, config.value(), standing.value(), plan.base_environment);
    auto all = elastic_hosts(options, *plan.elastic);
    if (!all.empty() || plan.elastic->discovery) hosts = std::move(all);
  }
  if (over_several_hosts(hosts.value(), options)) {
    return run_on_hosts(std::move(plan), std::move(hosts).value(), found.slurm, {}, environment,
                        version, config.value().start_timeout_seconds);
  }
  AgentPlan agent;
  int most_ranks = options.num_proc;
  if (elastic) {
    most_ranks = known_slots(*plan.elastic);
    agent.elastic = true;
  } else {
    agent.places = std::move(hosts.value().front().places);
  }
  auto bindings = bind_here(options.bind, most_ranks);
  if (!bindings.ok()) return fail(kUsageError, bindings.status().message());
  agent.bindings = std::move(bindings).value();
  const ResolvedCommand command = resolve_command(options.command.front(), get("PATH"));
  if (command.exit_code != 0) return fail(command.exit_code, command.reason);
  agent.program = command.path;
  agent.options = plan.options;
  agent.base_environment = plan.base_environment;
  agent.dead_seconds = plan.dead_seconds;
  agent.init_patience = plan.init_patience;
  agent.terminal_stdin = plan.terminal_stdin;
  return run_on_one_host(plan, std::move(agent));
}

}  // namespace rueda::launcher

#include "launcher/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "collectives/base/config.h"
#include "collectives/base/timeline_file.h"
#include "launcher/agent.h"
#include "launcher/exit_report.h"
#include "launcher/process_tree.h"
#include "launcher/spawn.h"

namespace rueda::launcher {
namespace {

constexpr std::chrono::seconds kKillLimit{10};

int fail(int code, const std::string& text) {
  std::fprintf(stderr, "ruedarun: %s\n", text.c_str());
  return code;
}

// Descriptors 0, 1 and 2 exist from here on, so that none of ours gets such a number.
void ensure_standard_descriptors() {
  while (true) {
    const int fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO) close(fd);
    if (fd < 0 || fd > STDERR_FILENO) return;
  }
}

// When we run inside a rank of another ruedarun, its socket and key came with the environment. A
// copy kept open here would hide that rank's end from its agent.
void close_descriptors_of_outer_job(const std::vector<std::string>& environment) {
  for (const char* name : {"RUEDA_AGENT_FD", "RUEDA_KEY_FD"}) {
    const char* value = find_variable(environment, name);
    const int fd = value == nullptr ? -1 : std::atoi(value);
    if (fd > STDERR_FILENO) close(fd);
  }
}

std::vector<std::string> own_names() {
  std::vector<std::string> names = {"localhost", "127.0.0.1", "::1"};
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0') {
    names.emplace_back(name);
    names.push_back(names.back().substr(0, names.back().find('.')));
  }
  return names;
}

int count_usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return CPU_COUNT(&cores);
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

// Blocks what the driver and the agent wait for, and ignores what would end them in mid-sentence.
// Returns the blocked set.
sigset_t prepare_signals(bool* hangup_ignored) {
  struct sigaction old = {};
  sigaction(SIGHUP, nullptr, &old);
  *hangup_ignored = old.sa_handler == SIG_IGN;  // nohup

  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    if (signal == SIGHUP && *hangup_ignored) continue;
    sigaddset(&wanted, signal);
    ::signal(signal, SIG_DFL);  // a shell starts background jobs with SIGINT ignored
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGTTOU, SIG_IGN);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  return wanted;
}

// Waits for the agent to end and hands signals on to it. Returns its wait status.
int wait_for_agent(pid_t agent, const sigset_t& signals) {
  for (;;) {
    siginfo_t info = {};
    const int signal = sigwaitinfo(&signals, &info);
    if (signal < 0) continue;
    if (signal != SIGCHLD) {
      kill(agent, signal);
      continue;
    }
    int status = 0;
    if (waitpid(agent, &status, WNOHANG) == agent) return status;
  }
}

int run_job(AgentPlan plan) {
  const sigset_t signals = prepare_signals(&plan.hangup_ignored);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const std::vector<pid_t> before = children_of(getpid());

  int link[2];
  if (pipe2(link, O_CLOEXEC) != 0)
    return fail(kLauncherFailure, errno_status("cannot open a pipe", errno).message());
  UniqueFd alive_end(link[1]), watch_end(link[0]);
  plan.driver = getpid();
  std::fflush(nullptr);
  const pid_t agent = fork();
  if (agent < 0)
    return fail(kLauncherFailure, errno_status("cannot start another process", errno).message());
  if (agent == 0) {
    alive_end.reset();
    return run_agent(plan, std::move(watch_end));
  }
  watch_end.reset();

  const int status = wait_for_agent(agent, signals);
  const auto stuck = kill_children({before.begin(), before.end()}, kKillLimit);
  for (const pid_t pid : stuck)
    fail(0, "process " + std::to_string(pid) + " is stuck in the kernel and was left behind");
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  return fail(exit_code_of(status), "the agent (pid " + std::to_string(agent) +
                                        ") that looked after the ranks was " +
                                        describe_wait_status(status) +
                                        "; every process of the job was killed; exit code " +
                                        std::to_string(exit_code_of(status)));
}

}  // namespace

int run_driver(const Options& options, const std::vector<std::string>& environment) {
  ensure_standard_descriptors();
  close_descriptors_of_outer_job(environment);
  if (is_file(options.hosts)) {
    return fail(kUsageError, "-H '" + options.hosts +
                                 "' is a file; -H takes host:slots,... (-H localhost:" +
                                 std::to_string(options.num_proc) + ")");
  }
  AgentPlan plan;
  plan.options = options;
  auto places = plan_hosts(options.num_proc, options.hosts, own_names());
  if (!places.ok()) return fail(kUsageError, places.status().message());
  plan.places = std::move(places).value();
  plan.base_environment = base_environment(environment, options);
  plan.usable_cores = count_usable_cores();
  plan.terminal_stdin = terminal_is_ours();

  // A wrong setting would fail in every rank; here it fails once.
  const auto get = [&](const char* name) { return find_variable(plan.base_environment, name); };
  const auto config = load_config(get);
  if (!config.ok()) return fail(kUsageError, config.status().message());
  plan.summary = config.value().summary;
  plan.dead_seconds = config.value().dead_seconds;
  plan.timeline = {config.value().timeline, config.value().timeline_all_ranks, options.num_proc};
  if (timeline_file(plan.timeline.path, true, 0) && plan.timeline.path[0] != '/') {
    // A rank may change its folder before it opens the file.
    plan.timeline.path = std::filesystem::current_path().string() + "/" + plan.timeline.path;
    set_variable(&plan.base_environment, "RUEDA_TIMELINE", plan.timeline.path);
  }

  const ResolvedCommand command = resolve_command(options.command.front(), get("PATH"));
  if (command.exit_code != 0) return fail(command.exit_code, command.reason);
  plan.program = command.path;
  return run_job(std::move(plan));
}

}  // namespace rueda::launcher

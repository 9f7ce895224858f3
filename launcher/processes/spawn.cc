#include "launcher/processes/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "collectives/host/threads.h"

namespace rueda::launcher {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

namespace {

void say(const char* text) {
  const ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
  static_cast<void>(ignored);
}

// Everything the child needs, laid out before fork: it may not allocate.
struct ChildPlan {
  const SpawnRequest* request;
  pid_t parent;
  char* const* arguments;
  char* const* shell_arguments;  // for a script without "#!"
  char* const* environment;
  const cpu_set_t* cpus;  // null: not bound
  size_t cpus_bytes;
};

[[noreturn]] void run_child(const ChildPlan& plan) {
  const SpawnRequest& request = *plan.request;
  setsid();
  if (!request.outlives_us) prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!request.outlives_us && getppid() != plan.parent)
    _exit(128 + SIGKILL);  // the agent ended before the line above

  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal == SIGHUP && request.hangup_stays_ignored) continue;
    sigaction(signal, &by_default, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  // stdin may already be at its number, then dup2 does nothing; standard numbers are never free
  // here (the driver sees to it), so the pipes are above them.
  dup2(request.stdin_fd, STDIN_FILENO);
  dup2(request.stdout_fd, STDOUT_FILENO);
  dup2(request.stderr_fd, STDERR_FILENO);
  if (plan.cpus != nullptr && sched_setaffinity(0, plan.cpus_bytes, plan.cpus) != 0) {
    say("ruedarun: this rank could not be bound to its cpus: ");
    say(strerrordesc_np(errno));
    say("; it runs on any\n");
  }
  for (const int fd : request.inherited) fcntl(fd, F_SETFD, 0);

  execve(request.program.c_str(), plan.arguments, plan.environment);
  if (errno == ENOEXEC) execve("/bin/sh", plan.shell_arguments, plan.environment);
  const int error = errno;
  say("ruedarun: cannot run '");
  say(request.program.c_str());
  say("': ");
  say(error == ENOENT ? "it, or the interpreter named in its first line, does not exist"
                      : strerrordesc_np(error));
  say("\n");
  _exit(error == ENOENT ? 127 : 126);
}

}  // namespace

Result<pid_t> spawn_rank(const SpawnRequest& request) {
  std::vector<std::string> shell = {"/bin/sh", request.program};
  shell.insert(shell.end(), request.arguments.begin() + 1, request.arguments.end());
  const std::vector<char*> arguments = pointers_to(request.arguments);
  const std::vector<char*> shell_arguments = pointers_to(shell);
  const std::vector<char*> environment = pointers_to(request.environment);
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> cpus(nullptr,
                                                        [](cpu_set_t* set) { CPU_FREE(set); });
  size_t cpus_bytes = 0;
  if (!request.cpus.empty()) {
    const auto count =
        static_cast<size_t>(*std::max_element(request.cpus.begin(), request.cpus.end())) + 1;
    cpus_bytes = CPU_ALLOC_SIZE(count);
    cpus.reset(CPU_ALLOC(count));
    CPU_ZERO_S(cpus_bytes, cpus.get());
    for (const int cpu : request.cpus) CPU_SET_S(static_cast<size_t>(cpu), cpus_bytes, cpus.get());
  }
  const ChildPlan plan = {&request,           getpid(),   arguments.data(), shell_arguments.data(),
                          environment.data(), cpus.get(), cpus_bytes};
  const pid_t pid = fork();
  if (pid == 0) run_child(plan);
  if (pid < 0) return host::no_process("cannot start another process", errno);
  return pid;
}

namespace {

// What was meant by a command that cannot be started and is a Python script.
std::string advice_on(const std::string& command) {
  struct stat info = {};
  const bool is_python = command.size() > 3 && command.compare(command.size() - 3, 3, ".py") == 0;
  if (!is_python || stat(command.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  return "; to run a script, put python before it: ruedarun -np N python " + command;
}

// A script without the line that names its interpreter; a shell would take it for its own.
bool lacks_interpreter(const std::string& path) {
  char first[2] = {};
  std::ifstream file(path, std::ios::binary);
  return !(file.read(first, sizeof first) && first[0] == '#' && first[1] == '!');
}

}  // namespace

ResolvedCommand resolve_command(const std::string& command, const char* search_path) {
  const auto usable = [](const std::string& path, bool* exists) {
    struct stat info = {};
    if (stat(path.c_str(), &info) != 0) return false;
    *exists = true;
    return S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
  };
  bool exists = false;
  if (command.find('/') != std::string::npos) {
    if (usable(command, &exists)) {
      const std::string advice = advice_on(command);
      if (advice.empty() || !lacks_interpreter(command)) return {command, 0, ""};
      return {"", 126, "'" + command + "' does not begin with #! and an interpreter" + advice};
    }
  } else {
    const std::string path = search_path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : search_path;
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find(':', begin), path.size());
      const std::string folder = path.substr(begin, end - begin);
      const std::string candidate = (folder.empty() ? "." : folder) + "/" + command;
      if (usable(candidate, &exists)) return {candidate, 0, ""};
      begin = end + 1;
    }
  }
  if (exists) return {"", 126, "'" + command + "' is not an executable file" + advice_on(command)};
  return {"", 127, "command '" + command + "' not found" + advice_on(command)};
}

}  // namespace rueda::launcher

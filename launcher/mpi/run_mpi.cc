#include "launcher/mpi/run_mpi.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>

#include "launcher/hosts/start_command.h"
#include "launcher/job/exit_code.h"
#include "launcher/job/rank_environment.h"
#include "launcher/mpi/installation.h"
#include "launcher/processes/guard.h"
#include "launcher/processes/spawn.h"

namespace rueda::launcher {
namespace {

// In the guard's child, which it becomes. It stays in our process group: so it has the terminal.
int become_mpirun(const MpirunCommand& command, bool hangup_ignored, bool reads_stdin) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // kept across exec: without us it stops the job
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGHUP || !hangup_ignored) ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!reads_stdin) {
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) dup2(null, STDIN_FILENO);
  }
  const std::vector<char*> words = pointers_to(command.words),
                           variables = pointers_to(command.environment);
  execve(words[0], words.data(), variables.data());
  return fail(kLauncherFailure, "cannot start " + command.words[0] + ": " + strerror(errno));
}

}  // namespace

int run_mpi(MpirunRequest request) {
  const auto get = [&](const char* name) { return find_variable(request.environment, name); };
  const auto mpi = find_mpi(get("RUEDA_LIBRARY"), get("PATH"), request.options.mpirun);
  if (!mpi.ok()) return fail(kUsageError, mpi.status().message());
  request.mpirun = mpi.value().mpirun;
  const auto command = mpirun_command(request);
  if (!command.ok()) return fail(kUsageError, command.status().message());
  if (request.options.verbose) {
    std::string text = mpi.value().library + ", started as:";
    for (const std::string& word : command.value().words) {
      text += ' ';
      text += quote_for_shell(word);
    }
    fail(0, text);
  }
  const bool reads =
      request.options.stdin_mode == Options::Stdin::kOneRank ||
      (request.options.stdin_mode == Options::Stdin::kAuto && request.terminal_stdin);
  return guard(
      "mpirun",
      [&](GuardLink link) { return become_mpirun(command.value(), link.hangup_ignored, reads); },
      GuardedGroup::kOurs);
}

}  // namespace rueda::launcher

#include "launcher/processes/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "collectives/base/status.h"
#include "collectives/host/threads.h"
#include "launcher/job/exit_code.h"
#include "launcher/job/exit_report.h"
#include "launcher/processes/process_tree.h"

namespace rueda::launcher {
namespace {

// Blocks what the guard and the child wait for, and ignores what would end them in mid-sentence.
// Returns the blocked set.
sigset_t prepare_signals(bool* hangup_ignored) {
  struct sigaction old = {};
  sigaction(SIGHUP, nullptr, &old);
  *hangup_ignored = old.sa_handler == SIG_IGN;  // nohup

  struct sigaction suspend = {};
  sigaction(SIGTSTP, nullptr, &suspend);  // ignored by shells without job control

  sigset_t wanted;
  sigemptyset(&wanted);
  if (suspend.sa_handler != SIG_IGN) sigaddset(&wanted, SIGTSTP);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    if (signal == SIGHUP && *hangup_ignored) continue;
    sigaddset(&wanted, signal);
    ::signal(signal, SIG_DFL);  // a shell starts background jobs with SIGINT ignored
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow (ulimit -f) ends the file, not the job
  ::signal(SIGTTOU, SIG_IGN);
  sigset_t blocked = wanted;
  sigaddset(&blocked, SIGCONT);  // the child reads it; us it lets go on all the same
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  return wanted;
}

// Ctrl-Z: the ranks rest, then this process does as the shell expects, until the shell lets it go
// on. Under mpirun, which is in our group, the terminal has told everybody.
void suspend(pid_t child, bool tell) {
  if (tell) kill(child, SIGTSTP);
  raise(SIGSTOP);
  if (tell) kill(child, SIGCONT);
}

bool asks_to_stop(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

// Somebody has stopped the child itself, which can neither hear nor tell of it.
void tell_of_pause(const std::string& what, pid_t child, bool paused) {
  const std::string name = "the " + what + " (pid " + std::to_string(child) + ")";
  fail(0, paused ? name +
                       ", which looks after the ranks, has been stopped by a signal: continue it "
                       "with kill -CONT " +
                       std::to_string(child) + ", or end the job with a second Ctrl-C"
                 : name + " goes on");
}

// Who started us on another host, and took what we say, has gone.
bool nobody_listens() {
  pollfd errors = {STDERR_FILENO, 0, 0};
  return poll(&errors, 1, 0) > 0 && (errors.revents & (POLLERR | POLLHUP)) != 0;
}

// As sigwaitinfo; -1 after a second, too, if not `for_ever`.
int next_signal(const sigset_t& signals, bool for_ever, siginfo_t* info) {
  const timespec second = {1, 0};
  return for_ever ? sigwaitinfo(&signals, info) : sigtimedwait(&signals, info, &second);
}

// Waits for the child to end and hands signals on to it. Returns its wait status; `asked`: those
// that asked the job to stop are added. The second one kills a child that is stopped, and with it
// the job; so does that nobody is there any more who could continue it.
int wait_for_child(const std::string& what, pid_t child, const sigset_t& signals,
                   GuardedGroup group, std::vector<int>* asked) {
  bool paused = false;
  for (;;) {
    siginfo_t info = {};
    const int signal = next_signal(signals, !paused, &info);
    if (paused && signal < 0 && nobody_listens()) {
      asked->push_back(SIGHUP);
      kill(child, SIGKILL);
    }
    if (signal < 0) continue;
    if (signal != SIGCHLD) {
      if (asks_to_stop(signal)) asked->push_back(signal);
      const bool sent_by_terminal = info.si_code == SI_KERNEL;
      const bool tell = group == GuardedGroup::kOwn || !sent_by_terminal;
      if (signal == SIGTSTP) {
        suspend(child, tell);
      } else if (tell) {
        kill(child, paused && asked->size() > 1 ? SIGKILL : signal);
      }
      continue;
    }
    int status = 0;
    const int also = group == GuardedGroup::kOwn ? WUNTRACED | WCONTINUED : 0;
    while (waitpid(child, &status, WNOHANG | also) == child) {
      if (!WIFSTOPPED(status) && !WIFCONTINUED(status)) return status;
      if (paused == WIFSTOPPED(status)) continue;
      paused = WIFSTOPPED(status);
      tell_of_pause(what, child, paused);
    }
  }
}

}  // namespace

void ensure_standard_descriptors() {
  while (true) {
    const int fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO) close(fd);
    if (fd < 0 || fd > STDERR_FILENO) return;
  }
}

int guard(const std::string& what, const std::function<int(GuardLink)>& work, GuardedGroup group,
          const GuardedAgain& again) {
  bool hangup_ignored = false;
  const sigset_t signals = prepare_signals(&hangup_ignored);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const std::vector<pid_t> before = children_of(getpid());

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return fail(kLauncherFailure, errno_status("cannot open a pipe", errno).message());
  UniqueFd alive_end(ends[1]), child_end(ends[0]);
  const pid_t self = getpid();
  std::vector<int> asked;  // signals that ask to stop
  pid_t child = 0;
  int status = 0;
  for (;;) {
    again.before_each();
    std::fflush(nullptr);
    child = fork();
    if (child < 0)
      return fail(kLauncherFailure,
                  host::no_process("cannot start another process", errno).message());
    if (child == 0) {
      alive_end.reset();
      return work({std::move(child_end), self, hangup_ignored, asked});
    }
    status = wait_for_child(what, child, signals, group, &asked);
    if (!WIFSIGNALED(status) || again.over() || !again.again()) break;
    fail(0, "the " + what + " (pid " + std::to_string(child) + ") was " +
                describe_wait_status(status) + "; the job goes on, and another " + what +
                " takes over");
  }
  const auto stuck = kill_children({before.begin(), before.end()}, kKillLimit);
  for (const pid_t pid : stuck)
    fail(0, "process " + std::to_string(pid) + " is stuck in the kernel and was left behind");
  if (group == GuardedGroup::kOurs && !asked.empty()) return 128 + asked.front();
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  if (const auto code = again.over()) {
    fail(0, "the " + what + " (pid " + std::to_string(child) + ") was " +
                describe_wait_status(status) + " when the job was over; exit code " +
                std::to_string(*code));
    return *code;
  }
  return fail(exit_code_of(status), "the " + what + " (pid " + std::to_string(child) +
                                        ") that looked after the ranks was " +
                                        describe_wait_status(status) +
                                        "; every process of the job was killed; exit code " +
                                        std::to_string(exit_code_of(status)));
}

}  // namespace rueda::launcher

#include "runtime/observe/life/preemption.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace rueda::life {
namespace {

std::atomic<bool> asked{false};
std::atomic<pid_t> owner{0};
struct sigaction handlers_before[NSIG];
bool noted[NSIG] = {};

// Async-signal-safe.
void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const struct sigaction& before = handlers_before[signal];
  if (getpid() == owner.load(std::memory_order_relaxed)) {
    asked.store(true, std::memory_order_relaxed);
  } else if (before.sa_handler == SIG_DFL) {
    sigaction(signal, &before, nullptr);  // a forked child: as if we had never been here
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
  }
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    if ((before.sa_flags & SA_SIGINFO) != 0) {
      before.sa_sigaction(signal, info, context);
    } else {
      before.sa_handler(signal);
    }
  }
  errno = saved;
}

}  // namespace

void note_signals(const std::vector<int>& signals) {
  owner.store(getpid(), std::memory_order_relaxed);
  for (const int signal : signals) {
    if (std::exchange(noted[signal], true)) continue;
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(signal, nullptr, &handlers_before[signal]);
    sigaction(signal, &action, nullptr);
  }
}

bool stop_was_asked() { return asked.load(std::memory_order_relaxed); }

}  // namespace rueda::life

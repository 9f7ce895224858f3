#include "runtime/life/preemption.h"

#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <sstream>
#include <utility>

namespace rueda::runtime {
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

int number_of(std::string name) {
  int number = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && rest == name.data() + name.size()) return number;
  if (name.starts_with("SIG")) name.erase(0, 3);
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* known = sigabbrev_np(signal);
    if (known != nullptr && name == known) return signal;
  }
  return -1;
}

}  // namespace

Result<std::vector<int>> parse_signals(const std::string& text) {
  std::vector<int> signals;
  if (text.empty() || text == "none") return signals;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    const int signal = number_of(name);
    const bool usable = signal > 0 && signal < NSIG && signal != SIGKILL && signal != SIGSTOP &&
                        signal != SIGSEGV && signal != SIGBUS && signal != SIGFPE &&
                        signal != SIGILL && signal != SIGABRT;
    if (!usable) {
      return invalid_argument("RUEDA_PREEMPTION_SIGNAL='" + text + "': '" + name +
                              "' is no signal that can be waited for; expected names such as "
                              "SIGTERM,SIGUSR1, or none");
    }
    signals.push_back(signal);
  }
  return signals;
}

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

}  // namespace rueda::runtime

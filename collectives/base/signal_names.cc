#include "collectives/base/signal_names.h"

#include <signal.h>
#include <string.h>

#include <charconv>
#include <sstream>

namespace rueda {
namespace {

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

}  // namespace rueda

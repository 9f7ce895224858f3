// Runs work in a child process and looks after it: signals that we are sent are handed on to it,
// and when it has ended, by itself or killed, every process that it has left behind is killed;
// where it is begun again, not before the last has ended. The next is told of the signals that have
// asked for the end.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives/base/unique_fd.h"

namespace rueda::launcher {

struct GuardLink {
  UniqueFd fd;                  // becomes readable (end of file) when the guard is gone
  int guard = 0;                // its process id
  bool hangup_ignored = false;  // started under nohup
  // What has asked for the end of the work before this child was begun, in order.
  std::vector<int> asked = {};
};

// kOwn: `work` moves into a process group of its own. kOurs: it stays in this one, is sent the
// terminal's signals by the terminal itself, and does not turn them into an exit code: after
// SIGINT, SIGTERM, SIGHUP or SIGQUIT that is 128 + signal.
enum class GuardedGroup { kOwn, kOurs };

// Of work that may be begun again, in another child, when one was killed.
struct GuardedAgain {
  std::function<void()> before_each = [] {};           // in the guard
  std::function<bool()> again = [] { return false; };  // after one was killed by a signal
  // The exit code, when the work of the one that was killed was over.
  std::function<std::optional<int>()> over = [] { return std::nullopt; };
};

// `work` runs in the child, with SIGINT, SIGTERM, SIGQUIT, SIGHUP and SIGCHLD blocked; what it
// returns is the exit code. `what` names the child ("agent").
int guard(const std::string& what, const std::function<int(GuardLink)>& work,
          GuardedGroup group = GuardedGroup::kOwn, const GuardedAgain& again = {});

// Descriptors 0, 1 and 2 exist from here on, so that none of ours gets such a number.
void ensure_standard_descriptors();

}  // namespace rueda::launcher

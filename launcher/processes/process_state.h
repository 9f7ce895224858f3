// What a process does, as /proc shows it, for people.
#pragma once

#include <sys/types.h>

#include <string>

#include "launcher/job/process_use.h"

namespace rueda::launcher {

// Of LifeWatch, which asks for less and more often: ProcessState (silence.h).
struct ProcessActivity {
  // It cannot make progress by itself: stopped, in a debugger, dumping core, in the kernel, or no
  // more.
  bool silent = false;
  std::string text;  // "blocked in read of fd 3", "stopped by a signal"; "": unknown
};

// Of its main thread.
ProcessActivity process_activity(pid_t pid);
// What it takes of the host so far; zeros where /proc does not say.
ProcessUse process_use(pid_t pid);
// What all processes of this host have computed so far; 0 where /proc does not say.
int64_t host_cpu_ns();
// Does it catch this signal? Else the signal would end it.
bool catches_signal(pid_t pid, int signal);

}  // namespace rueda::launcher

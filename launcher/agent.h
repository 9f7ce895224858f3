// The agent: the process that starts the ranks of this host and looks after them.
//
// It runs in a process of its own, forked by the driver, in a session of its own, so that Ctrl-C
// in the terminal reaches the driver only. One thread and one poll loop: signals, the driver's
// life, the ranks' output, deaths, deadlines. It hosts the store that the ranks meet at.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "collectives/base/unique_fd.h"
#include "launcher/host_plan.h"
#include "launcher/options.h"
#include "launcher/rank_environment.h"
#include "launcher/timeline_files.h"

namespace rueda::launcher {

struct AgentPlan {
  Options options;
  std::vector<RankPlace> places;
  std::string program;  // path of the command
  std::vector<std::string> base_environment;
  int usable_cores = 1;
  pid_t driver = 0;
  bool hangup_ignored = false;
  TimelineFiles timeline;
  bool summary = false;
  double dead_seconds = 5;  // how long a rank may be stopped
  bool terminal_stdin = false;  // our standard input is a terminal, and it is ours to read
};

// Returns ruedarun's exit code when no process of the job is left. `driver_link` becomes readable
// (end of file) when the driver is gone. Signals that the agent waits for are blocked already.
int run_agent(const AgentPlan& plan, UniqueFd driver_link);

}  // namespace rueda::launcher

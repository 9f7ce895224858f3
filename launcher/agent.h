// The agent: the process that starts the ranks of this host and looks after them.
//
// It runs in a process of its own, forked by the driver, in a session of its own, so that Ctrl-C
// in the terminal reaches the driver only. One thread and one poll loop: signals, the driver's
// life, the ranks' output, deaths, deadlines. In a job on one host it holds the store that the
// ranks meet at, prints and judges; in a job over several an uplink takes that to the driver.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "collectives/base/unique_fd.h"
#include "launcher/binding/binding.h"
#include "launcher/host_plan.h"
#include "launcher/options.h"
#include "launcher/rank_environment.h"
#include "launcher/timeline_files.h"
#include "launcher/uplink.h"
#include "runtime/rendezvous/job_key.h"

namespace rueda::launcher {

struct AgentPlan {
  Options options;
  std::vector<RankPlace> places;
  std::string program;  // path of the command
  std::vector<std::string> base_environment;
  std::vector<RankBinding> bindings;  // of each of `places`
  pid_t driver = 0;                   // our parent, who must live; 0: nobody in particular
  bool hangup_ignored = false;
  TimelineFiles timeline;
  bool summary = false;
  double dead_seconds = 5;      // how long a rank may be stopped
  bool terminal_stdin = false;  // our standard input is a terminal, and it is ours to read
  // Of a job over several hosts; on one host the agent makes its own.
  std::string job_id;
  std::string host;  // as the job names it
  std::optional<rendezvous::JobKey> key;
};

// Returns ruedarun's exit code when no process of the job is left. `driver_link` becomes readable
// (end of file) when the driver is gone. Signals that the agent waits for are blocked already.
// `uplink`: of a job over several hosts, else null; borrowed.
int run_agent(const AgentPlan& plan, UniqueFd driver_link, Uplink* uplink = nullptr);

}  // namespace rueda::launcher

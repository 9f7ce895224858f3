// The agent: the process that starts the ranks of this host and looks after them.
//
// It runs in a process of its own, forked by its guard (the driver; over several hosts the process
// that was started there, host_agent.h), in a session of its own, so that Ctrl-C in the terminal
// reaches the driver only. One thread and one poll loop: signals, the guard's life, the ranks'
// output, deaths, deadlines. What is of the whole job (the store, the console, the verdict) is its
// controller's, in this process or in another.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "collectives/base/unique_fd.h"
#include "launcher/binding/binding.h"
#include "launcher/command/options.h"
#include "launcher/hosts/controller_client.h"
#include "launcher/job/host_plan.h"
#include "launcher/job/rank_environment.h"
#include "runtime/rendezvous/job_key.h"

namespace rueda::launcher {

struct AgentPlan {
  Options options;
  std::vector<RankPlace> places;
  std::string program;  // path of the command
  std::vector<std::string> base_environment;
  std::vector<RankBinding> bindings;  // of each of `places`; in an elastic job of each slot
  pid_t guard = 0;                    // our parent, who must live; 0: nobody in particular
  bool hangup_ignored = false;
  double dead_seconds = 5;    // how long a rank may be stopped
  double init_patience = 30;  // when ranks that have not called init are told of
  // Ranks come by order of the controller, `places` is empty, and what becomes of the others when
  // one is lost is for the controller to say; the agent stays until the job is over.
  bool elastic = false;
  bool terminal_stdin = false;  // our standard input is a terminal, and it is ours to read
  // All ranks of the job are ours: the agent explains hangs, answers `rueda drain`, and writes the
  // flight recorders of a job that has failed. Else the controller does, and asks.
  bool explains = false;
  std::string job_id;
  std::string host;                       // as the job names it
  std::optional<rendezvous::JobKey> key;  // of the job; there once the agent runs
};

// Returns when no process of this host's ranks is left: 0, 128 + the signal that has stopped them,
// or kLauncherFailure. `guard_link` becomes readable (end of file) when the guard is gone. Signals
// that the agent waits for are blocked already. `controller`: borrowed.
int run_agent(const AgentPlan& plan, UniqueFd guard_link, ControllerClient* controller);

}  // namespace rueda::launcher

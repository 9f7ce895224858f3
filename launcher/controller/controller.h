// The controller of a job over several hosts: the process that starts the agents, keeps the store
// that all ranks meet at, prints what ranks write, and judges.
//
// It stands where the agent stands in a job on one host: a child of the driver, in a session of its
// own (processes/guard.h). Each host's agent stops its own ranks by the same rules
// (job/supervisor.h) when it is told what has happened elsewhere.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/controller/job_books.h"
#include "launcher/controller/succession.h"
#include "launcher/hosts/node_ticket.h"
#include "launcher/job/host_plan.h"
#include "launcher/processes/guard.h"

namespace rueda::launcher {

struct ControllerPlan : BooksPlan {
  std::vector<HostPlan> hosts;
  std::vector<std::string> own_environment;  // of ssh and the like
  std::string folder;                        // of the ranks
  std::string version;
  double start_seconds = 30;  // until all hosts are there
  bool use_srun = false;
  // The other nodes run the same command, and fetch the ticket here.
  std::optional<NodeDoor> nodes;
  double dead_seconds = 5;  // how long a rank may be stopped
  std::unique_ptr<Succession> succession;

  // One ticket for all agents, else one for each host.
  bool one_ticket() const { return use_srun || nodes || !options.token_file.empty(); }
};

// Of the plan's job, for its `succession`.
Result<std::unique_ptr<Succession>> make_succession(const ControllerPlan& plan);

// Blocks until no host has a process of the job any more; returns ruedarun's exit code. Where
// another controller was killed, this one takes over.
int run_controller(const ControllerPlan& plan, GuardLink link);

}  // namespace rueda::launcher

// The controller of a job over several hosts: the process that starts the agents, keeps the store
// that all ranks meet at, prints what ranks write, and judges.
//
// It stands where the agent stands in a job on one host: a child of the driver, in a session of its
// own (processes/guard.h). Each host's agent stops its own ranks by the same rules
// (job/supervisor.h) when it is told what has happened elsewhere.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/controller/job_books.h"
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
};

// Blocks until no host has a process of the job any more; returns ruedarun's exit code.
int run_controller(const ControllerPlan& plan, GuardLink link);

}  // namespace rueda::launcher

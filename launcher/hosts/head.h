// The head of a job over several hosts: the driver's process that starts the agents, keeps the
// store that all ranks meet at, prints what ranks write, and judges.
//
// It stands where the agent stands in a job on one host: a child of the ruedarun that the user
// started, in a session of its own (guard.h). Each host's agent stops its own ranks by the same
// rules (supervisor.h) when it is told what has happened elsewhere.
#pragma once

#include <string>
#include <vector>

#include "launcher/guard.h"
#include "launcher/host_plan.h"
#include "launcher/options.h"
#include "launcher/timeline_files.h"

namespace rueda::launcher {

struct HeadPlan {
  Options options;
  std::vector<HostPlan> hosts;
  std::vector<std::string> base_environment;  // of the ranks
  std::vector<std::string> own_environment;   // of ssh and the like
  std::string folder;                         // of the ranks
  std::string version;
  double start_seconds = 30;  // until all hosts are there
  bool use_srun = false;
  TimelineFiles timeline;
  bool summary = false;
  double dead_seconds = 5;  // how long a rank may be stopped
};

// Blocks until no host has a process of the job any more; returns ruedarun's exit code.
int run_head(const HeadPlan& plan, GuardLink link);

}  // namespace rueda::launcher

// The driver: the ruedarun process that the user started.
//
// It checks everything that can be checked before a process is started and forks the agent, or, for
// a job over several hosts, the controller (controller/controller.h); processes/guard.h looks
// after either.
#pragma once

#include <string>
#include <vector>

#include "launcher/command/options.h"

namespace rueda::launcher {

// Blocks until the job has ended; returns the exit code of ruedarun. `environment`: ours. Says on
// stderr, in one line, which hosts and how many ranks were found where no flag says it.
int run_driver(Options options, const std::vector<std::string>& environment,
               const std::string& version);

}  // namespace rueda::launcher

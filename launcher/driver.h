// The driver: the ruedarun process that the user started.
//
// It checks everything that can be checked before a process is started, forks the agent, hands
// SIGINT, SIGTERM, SIGHUP and SIGQUIT on to it, and returns its exit code. Should the agent be
// killed, the driver kills what is left of the job (it is a subreaper, so all of it becomes its
// children) and says so.
#pragma once

#include <string>
#include <vector>

#include "launcher/options.h"

namespace rueda::launcher {

inline constexpr int kLauncherFailure = 70;  // we could not do our part (EX_SOFTWARE)

// Blocks until the job has ended; returns the exit code of ruedarun. `environment`: ours.
int run_driver(const Options& options, const std::vector<std::string>& environment);

}  // namespace rueda::launcher

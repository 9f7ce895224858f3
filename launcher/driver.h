// The driver: the ruedarun process that the user started.
//
// It checks everything that can be checked before a process is started and forks the agent, or, for
// a job over several hosts, the head (hosts/head.h); guard.h looks after either.
#pragma once

#include <string>
#include <vector>

#include "launcher/options.h"

namespace rueda::launcher {

inline constexpr int kLauncherFailure = 70;  // we could not do our part (EX_SOFTWARE)

inline constexpr int kUnreachable = 69;    // a host cannot be reached or started (EX_UNAVAILABLE)
inline constexpr int kStartTimeout = 124;  // hosts were not there in time

// Says on stderr why ruedarun ends; returns the code.
int fail(int code, const std::string& text);

// Blocks until the job has ended; returns the exit code of ruedarun. `environment`: ours.
int run_driver(const Options& options, const std::vector<std::string>& environment,
               const std::string& version);

}  // namespace rueda::launcher

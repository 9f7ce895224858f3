// `ruedarun agent` and `ruedarun join`: the agent of one host of a job over several.
#pragma once

#include <string>
#include <vector>

namespace rueda::launcher {

// ruedarun agent --host-index N        started by the controller; the ticket is on standard input
// ruedarun agent --slurm               likewise, by srun on every host
// ruedarun join [HOST:PORT] --token-file F [--name NAME]
//
// Blocks until the host's part of the job has ended; returns the process's exit code.
// `arguments`: those after the program's name. `environment`: ours.
int run_host_agent(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment, const std::string& version);

}  // namespace rueda::launcher

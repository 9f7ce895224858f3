// `ruedarun agent` and `ruedarun join`: the agent of one host of a job over several.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/hosts/node_ticket.h"

namespace rueda::launcher {

// ruedarun agent --host-index N        started by the controller; the ticket is on standard input
// ruedarun agent --slurm               likewise, by srun on every host
// ruedarun join [HOST:PORT] --token-file F [--name NAME]
//
// Blocks until the host's part of the job has ended; returns the process's exit code.
// `arguments`: those after the program's name. `environment`: ours.
int run_host_agent(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment, const std::string& version);

// The agent of a node on which the same command runs as on node 0, which gives it the ticket.
// Blocks until the node's part of the job has ended; returns the process's exit code.
struct NodeAgent {
  NodeDoor door;
  std::chrono::duration<double> limit{0};  // of waiting for node 0
  std::vector<std::string> base;           // environment of the ranks
  bool verbose = false;
};
int run_node_agent(const NodeAgent& node, const std::string& version);

}  // namespace rueda::launcher

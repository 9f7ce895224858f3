// A job of several nodes on each of which the same command runs: PET_*, as Kubeflow's Trainer sets
// them and torchrun reads them. Pure.
//
//   PET_NNODES            nodes; "2:2" is two, a range is refused (no elastic membership)
//   PET_NPROC_PER_NODE    ranks on each: a number, gpu, cpu, or auto: gpu, else cpu
//   PET_NODE_RANK         this node, from 0
//   PET_MASTER_ADDR, PET_MASTER_PORT    node 0, and a port there that is free until the ranks run
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/base/config.h"
#include "collectives/base/status.h"
#include "launcher/job/hostfile.h"

namespace rueda::launcher {

// Where a Kubernetes Secret with the job's key is expected: docs/kubernetes.md, deploy/.
inline constexpr const char* kKeySecret = "rueda-job-key";

struct TorchNodes {
  int nodes = 1;
  int rank = 0;  // this node's
  int ranks_per_node = 1;
  std::string address;  // of node 0
  int port = 29500;

  int ranks() const { return nodes * ranks_per_node; }
  // "node0", "node1", ... with their slots.
  std::vector<HostSlots> hosts() const;
  // What nodes must agree on, and the purpose of the connections between them.
  std::string terms() const;
};
// Of a node, from 0.
std::string node_name(int rank);

// Nothing when PET_NNODES is not set. `gpu_devices`, `cores`: of this machine (auto_ranks.h).
// InvalidArgument names the variable that is missing or wrong.
Result<std::optional<TorchNodes>> read_torch_nodes(const GetEnv& get, int gpu_devices, int cores);

// Why several nodes without a key cannot be one job, with what to do.
std::string no_key_for_nodes(const TorchNodes& nodes);

// The ranks' environment, without the place that a pod is given as a whole (RANK, WORLD_SIZE) and
// with MASTER_ADDR and MASTER_PORT for programs that meet by themselves.
void set_torch_variables(const TorchNodes& nodes, std::vector<std::string>* environment);

}  // namespace rueda::launcher

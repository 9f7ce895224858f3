// `-np auto`: a rank for each GPU that is visible (or N, --ranks-per-gpu), else for each core that
// we may use. Pure.
//
// CUDA_VISIBLE_DEVICES counts as CUDA reads it: up to the first number that is negative. Then
// NVIDIA_VISIBLE_DEVICES, a container's: empty, "none" and "void" are no GPU, "all" is what there
// is. Then the devices themselves.
#pragma once

#include <string>

#include "collectives/base/config.h"
#include "collectives/base/status.h"

namespace rueda::launcher {

struct AutoRanks {
  int count = 1;
  std::string why;  // "2 GPUs, from CUDA_VISIBLE_DEVICES", "4 cores"
};

// GPUs that are visible; 0: none. `devices`: how many the machine shows.
AutoRanks visible_gpus(const GetEnv& get, int devices);
// The same, or `cores` (1 or more) where there is none.
AutoRanks auto_ranks(const GetEnv& get, int devices, int cores, int per_gpu = 1);

// What the user is told of `ranks` that share the GPUs here, per_gpu (2 or more) of them each.
// `mps`: the service is running that lets their kernels run side by side. InvalidArgument: there
// are more ranks than that. Empty: no GPU is visible.
Result<std::string> describe_sharing(const GetEnv& get, int devices, int ranks, int per_gpu,
                                     bool mps);
// NVIDIA's Multi-Process Service listens below `root`: in CUDA_MPS_PIPE_DIRECTORY, else in
// /tmp/nvidia-mps. Its process is there as far as the file of its id says.
bool mps_is_running(const GetEnv& get, const std::string& root = "");

// How many GPUs the driver's files below `root` show: the entries of /proc/driver/nvidia/gpus and
// the nodes /dev/nvidiaN. Where both are there the fewer, since a container hides either.
int count_gpu_devices(const std::string& root = "");

}  // namespace rueda::launcher

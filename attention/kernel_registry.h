// The local kernels of this process: an ordered list, from which each call takes one for its
// dtypes.
//
//   auto      the highest priority. Where bfloat16 meets a CPU with matrix units (AMX), which none
//             of our own kernels uses: measured
//   measured  the fastest: timed once for each dtype and class of head_dim, at the first call.
//             Another than the one of highest priority is taken if it is a tenth faster
//   a name    that one
//
// Threads: any; add and use_kernel before calls that should see it.
#pragma once

#include <string>
#include <vector>

#include "attention/local_kernel.h"
#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::attention {

// Registered kernels that this machine has, highest priority first.
std::vector<const LocalKernel*> kernels_here();

// Makes a kernel known; it lives as long as the process. AlreadyExists-like refusal:
// InvalidArgument names the kernel that has the name.
Status add_kernel(const LocalKernel* kernel);

// From now on calls choose so: "auto" or "", "measured", or a kernel's name. InvalidArgument lists
// the names that this machine has.
Status use_kernel(const std::string& name);

// For queries and keys of these dtypes. Null: the kernel that was asked for does not take them.
const LocalKernel* kernel_for(DType queries, DType keys, int64_t head_dim);
// The same, and why, for people.
struct KernelChoice {
  const LocalKernel* kernel = nullptr;
  std::string why;
};
KernelChoice choose_kernel(DType queries, DType keys, int64_t head_dim);
// Says so, by name.
Status check_kernel(DType queries, DType keys);

}  // namespace rueda::attention

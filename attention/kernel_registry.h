// The local kernels of this process: an ordered list, from which each call takes the best one for
// its dtypes, or the one that was asked for by name.
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

// Makes a kernel known; it lives as long as the process. AlreadyExists-like refusal: InvalidArgument
// names the kernel that has the name.
Status add_kernel(const LocalKernel* kernel);

// From now on calls use this kernel and no other; "auto" or "": the best. InvalidArgument lists the
// names that this machine has.
Status use_kernel(const std::string& name);

// For queries and keys of these dtypes. Null: the kernel that was asked for does not take them.
const LocalKernel* kernel_for(DType queries, DType keys);
// Says so, by name.
Status check_kernel(DType queries, DType keys);

}  // namespace rueda::attention

// MASTER_ADDR and MASTER_PORT, where programs meet that do it by themselves (torch.distributed's
// env://). Nobody listens there before they do.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/host_plan.h"

namespace rueda::launcher {

// Sets those that nobody has set: rank 0's host, and a port, which was free a moment ago where that
// host is this one.
void set_master_variables(const std::vector<HostPlan>& hosts,
                          std::vector<std::string>* environment);

}  // namespace rueda::launcher

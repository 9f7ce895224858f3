// What `--bind` comes to on this machine.
#pragma once

#include <string>
#include <vector>

#include "launcher/binding/binding.h"

namespace rueda::launcher {

// One for each of `local_size` ranks here. Errors: plan_binding's; FailedPrecondition when hwloc
// has been told to describe another machine, whose cores cannot be bound to.
Result<std::vector<RankBinding>> bind_here(const std::string& bind, int local_size);

// Cores (not hardware threads) that we may run on, within the control group's limit rounded down;
// at least 1.
int count_cores_here();

// The table that --print-config shows; with another machine's topology (HWLOC_SYNTHETIC), of that.
Result<std::string> binding_text(const std::string& bind, int local_size);

}  // namespace rueda::launcher

// What ruedarun finds where it is started: the hosts of the job and, without -np, how many ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/command/options.h"
#include "launcher/job/found_hosts.h"
#include "launcher/job/torch_nodes.h"

namespace rueda::launcher {

struct Standing {
  FoundHosts hosts;                    // none: this machine, as many ranks as are asked for
  std::optional<TorchNodes> nodes;     // this command runs on several, and hosts are these
  std::vector<std::string> own_names;  // of hosts that are this machine
  std::string said;                    // one line for the user about what no flag says, or empty
};

// Fills options->num_proc when no number is given. Reads hostfiles, devices and control groups; may
// ask flux.
Result<Standing> look_around(const std::vector<std::string>& environment, Options* options);

}  // namespace rueda::launcher

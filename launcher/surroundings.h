// What ruedarun finds where it is started: the hosts of the job and, without -np, how many ranks.
#pragma once

#include <string>
#include <vector>

#include "launcher/command/options.h"
#include "launcher/job/found_hosts.h"

namespace rueda::launcher {

// The hosts that the ranks go to; none: this machine, as many ranks as are asked for. Fills
// options->num_proc when no number is given. *said: one line for the user about what no flag says,
// empty when nothing was found. Reads hostfiles, devices and control groups; may ask flux.
Result<FoundHosts> look_around(const std::vector<std::string>& environment, Options* options,
                               std::string* said);

}  // namespace rueda::launcher

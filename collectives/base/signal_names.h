// Signals by name, as settings have them.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda {

// "SIGTERM,SIGUSR1", "TERM", "10"; "none" or "": no signals. InvalidArgument names the setting,
// RUEDA_PREEMPTION_SIGNAL.
Result<std::vector<int>> parse_signals(const std::string& text);

}  // namespace rueda

#include "collectives/base/stall_limit.h"

namespace rueda {

StallLimit stall_limit(const Config& config) {
  constexpr double kForTheLauncher = 2;  // which has its say first, with the policy
  const double shutdown = config.stall_shutdown_seconds;
  if (config.stall_policy == "abort" && config.stall_check_seconds > 0) {
    const double limit = config.stall_check_seconds + kForTheLauncher;
    if (shutdown <= 0 || limit < shutdown) return {limit, "RUEDA_STALL_POLICY=abort"};
  }
  return {shutdown, "RUEDA_STALL_SHUTDOWN_TIME_SECONDS"};
}

}  // namespace rueda

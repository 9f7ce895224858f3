// After how long what waits fails.
#pragma once

#include "collectives/base/config.h"

namespace rueda {

struct StallLimit {
  double seconds;      // 0: never
  const char* reason;  // the setting that wants it
};
StallLimit stall_limit(const Config& config);

}  // namespace rueda

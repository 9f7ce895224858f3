// The target in use. Chosen at the first call: the best that this CPU can run.
#pragma once

#include "collectives/kernels/targets.h"

namespace rueda::kernels {

// Any thread. A call that runs while use_target switches ends on the table it began with; the
// bits are the same.
const Target& target_in_use();

}  // namespace rueda::kernels

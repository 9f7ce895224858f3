// What the shared memory files of arena and heap have in common.
#pragma once

#include <fcntl.h>

namespace rueda::host {

// Nobody can cut such a file off below a mapping of it, or undo this.
inline constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace rueda::host

// Errors of files on disks.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/base/status.h"

namespace rueda {

// errno_status() of a write of `needed` bytes to `path`: when its disk is full, with what that has
// left (there errno_status() would tell of memory).
Status file_status(const std::string& what, const std::string& path, uint64_t needed, int err);

}  // namespace rueda

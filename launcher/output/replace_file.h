// Files that others read while they are written: whole, old or new, never in between.
#pragma once

#include <span>
#include <string>

#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::launcher {

// The file has these parts, one behind the other; they go to PATH.part first, which becomes PATH.
// what: "the flight recorder", for errors. Only this user may read it, unless `mode` says more.
Status replace_file(const std::string& path, std::span<const ByteView> parts,
                    const std::string& what, unsigned mode = 0600);

}  // namespace rueda::launcher

// Results to a file or to standard output.
#pragma once

#include <string>

#include "collectives/base/status.h"

namespace rueda::bench {

// "-": standard output. Unavailable names the file and the reason.
Status write_text(const std::string& path, const std::string& text);

}  // namespace rueda::bench

// The terminal of `rueda top`.
#pragma once

#include <string>

namespace rueda::top {

// Until the user has had enough (0), or the job has ended (0, and a line says so). -1: this
// terminal is not known, so nothing can be drawn on it.
int show(const std::string& job);

}  // namespace rueda::top

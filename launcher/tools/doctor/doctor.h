// `rueda doctor`: looks at this host, or merges what `rueda doctor --json` printed on several.
#pragma once

#include <string>
#include <vector>

namespace rueda::doctor {

// Arguments behind the word doctor. Prints, and returns the exit code: 0, 1 when no job can start
// on a host, 2 for a wrong command line.
int run_doctor(const std::vector<std::string>& arguments);

}  // namespace rueda::doctor

// `rueda explain`, `rueda status` and `rueda drain`.
#pragma once

#include <string>
#include <vector>

namespace rueda::launcher {

// Arguments without the command's name. Returns the exit code: 0, 1 if there is nothing to show, or
// kUsageError.
int run_explain(const std::vector<std::string>& arguments);
int run_status(const std::vector<std::string>& arguments);
int run_drain(const std::vector<std::string>& arguments);

}  // namespace rueda::launcher

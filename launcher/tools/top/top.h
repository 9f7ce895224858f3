// `rueda top`: a running job, second by second.
#pragma once

#include <string>
#include <vector>

namespace rueda::top {

// arguments: behind "top". Returns the exit code.
int run_top(const std::vector<std::string>& arguments);

}  // namespace rueda::top

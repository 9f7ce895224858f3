// `rueda attention plan`: what a distributed attention does, drawn from its plan.
#pragma once

#include <string>
#include <vector>

namespace rueda::plan {

// `arguments` follow "rueda attention". Returns the exit code; 2 for a wrong command line.
int run_attention(const std::vector<std::string>& arguments);

}  // namespace rueda::plan

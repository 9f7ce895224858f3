// `rueda bench`: as a rank of a job it measures; started by hand it starts a job of itself.
#pragma once

#include <string>
#include <vector>

namespace rueda::bench {

// `arguments` without "rueda bench". The process's exit code: 0; 1 when something failed or a
// result was wrong; 2 for a wrong command line.
int run_bench(const std::vector<std::string>& arguments);

}  // namespace rueda::bench

// The command line of `rueda bench` as a value. Pure; InvalidArgument with one line for the user.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/tools/bench/measure.h"

namespace rueda::bench {

struct BenchOptions {
  std::string help;  // not empty: print it and do nothing else
  int ranks = 2;
  bool ranks_given = false;
  std::vector<Case> cases;
  Effort effort;
  bool prepare = true;
  bool pin = true;
  bool limit = true;
  std::string json;     // file, "-" for standard output, empty: none
  std::string meeting;  // file that the ranks may use to meet; empty: one of their own
};

// `arguments` without "rueda bench".
Result<BenchOptions> parse_bench_options(const std::vector<std::string>& arguments);

}  // namespace rueda::bench

// What `rueda bench` prints: a table for people, JSON for programs. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/tools/bench/measure.h"

namespace rueda::bench {

struct BenchReport {
  std::string version;  // of librueda
  int ranks = 0;
  std::vector<Row> rows;
};

// The time that P ranks need to touch what the operation must touch, at the speed that the limit of
// this size showed: 0 when it was not measured. allreduce in place reads and writes every byte of
// every rank once: 2 P N bytes.
double limit_microseconds(const BenchReport& report, const Row& row);

std::string table_of(const BenchReport& report);
std::string json_of(const BenchReport& report);

}  // namespace rueda::bench

// Run: the positions begin, begin + step, ..., `count` of them. Rows of shards, segments and masks
// are lists of runs, so plans stay small whatever the sequence length.
#pragma once

#include <cstdint>
#include <vector>

namespace rueda::attention {

struct Run {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t step = 1;  // >= 1

  int64_t at(int64_t i) const { return begin + i * step; }
  int64_t last() const { return at(count - 1); }
  bool operator==(const Run&) const = default;
};

// The positions of both. Steps may differ: the result's step is their least common multiple.
Run intersect(const Run& a, const Run& b);
// The positions p of `run` with low <= p <= high.
Run clip(const Run& run, int64_t low, int64_t high);
// Runs that follow each other in value and step become one.
void append(std::vector<Run>* runs, Run run);
int64_t total(const std::vector<Run>& runs);

// Floor and ceiling of a / b for b > 0 and any a.
inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
inline int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

}  // namespace rueda::attention

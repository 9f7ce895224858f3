#include "attention/runs.h"

#include <algorithm>
#include <numeric>

namespace rueda::attention {

Run clip(const Run& run, int64_t low, int64_t high) {
  const int64_t first = low <= run.begin ? 0 : ceil_div(low - run.begin, run.step);
  const int64_t end =
      high < run.begin ? 0 : std::min(run.count, floor_div(high - run.begin, run.step) + 1);
  if (first >= end) return {run.begin, 0, run.step};
  return {run.at(first), end - first, run.step};
}

Run intersect(const Run& a, const Run& b) {
  if (a.count == 0 || b.count == 0) return {a.begin, 0, a.step};
  const int64_t low = std::max(a.begin, b.begin);
  const int64_t high = std::min(a.last(), b.last());
  const Run mine = clip(a, low, high);
  if (mine.count == 0 || (b.step == 1)) return mine;
  // The first of a's positions that is also one of b's comes within b.step of them, or never.
  const int64_t step = std::lcm(a.step, b.step);
  for (int64_t i = 0; i < std::min(mine.count, step / a.step); ++i) {
    if ((mine.at(i) - b.begin) % b.step == 0) {
      return {mine.at(i), (mine.last() - mine.at(i)) / step + 1, step};
    }
  }
  return {a.begin, 0, a.step};
}

void append(std::vector<Run>* runs, Run run) {
  if (run.count == 0) return;
  if (!runs->empty()) {
    Run& back = runs->back();
    if (back.count == 1) back.step = std::max<int64_t>(1, run.begin - back.begin);
    if (run.begin == back.at(back.count) && (run.step == back.step || run.count == 1)) {
      back.count += run.count;
      return;
    }
    if (back.count == 1) back.step = 1;
  }
  if (run.count == 1) run.step = 1;
  runs->push_back(run);
}

int64_t total(const std::vector<Run>& runs) {
  int64_t sum = 0;
  for (const Run& run : runs) sum += run.count;
  return sum;
}

}  // namespace rueda::attention

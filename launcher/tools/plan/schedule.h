// The plans of all ranks, as the library makes them.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/tools/plan/options.h"

namespace rueda::plan {

// A rectangle of (query, key) positions that one kernel call computes, in positions.
struct Tile {
  int64_t step, peer, head_begin, head_end, head_step;
  int64_t q, q_step, q_count, k, k_step, k_count, pairs;
};

struct RankPlan {
  std::vector<int64_t> numbers;  // of rueda_attention_plan_report
  std::vector<int64_t> tokens;   // positions, in the order of its tensors
  std::vector<Tile> tiles;
  std::string program;  // as text, where it is asked for
};

struct Schedule {
  std::vector<RankPlan> ranks;
  int64_t steps = 1;
  double balance = 1;  // largest over mean work
};

Result<Schedule> load_schedule(const PlanOptions& options);

}  // namespace rueda::plan

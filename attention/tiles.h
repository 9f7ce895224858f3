// From two shards and a mask to tiles: the planner's innermost step. Pure integers.
#pragma once

#include <vector>

#include "attention/overlaps.h"
#include "attention/parts.h"
#include "attention/plan.h"

namespace rueda::attention {

// A mask's components, found by their queries.
struct Components {
  explicit Components(const AttentionSpec& spec)
      : all(components_of(spec)), of_queries(all.size(), [this](size_t i) {
          return Interval{all[i].q.begin, all[i].q.last()};
        }) {}
  std::vector<Component> all;
  Overlaps of_queries;
};

// The tiles of queries in shard `q_tokens` and keys in shard `k_tokens`, as far as they lie in the
// part: its heads, and its rows of the side that travels.
std::vector<Tile> tiles_of(const AttentionPlan& plan, const Components& components,
                           const std::vector<Run>& q_tokens, const std::vector<Run>& k_tokens,
                           bool keys_travel, const Part& part);

}  // namespace rueda::attention

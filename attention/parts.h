// How the rows of a shard are cut into messages: by heads first, then by tokens. Pure integers.
//
// A message of all tokens of one head is computed as fast as the whole sequence would be: tiles are
// large, and the queries and sums of that head stay in the cache. The same bytes as some tokens of
// all heads bring all queries and sums past the core for a few keys each.
#pragma once

#include <vector>

#include "attention/runs.h"

namespace rueda::attention {

// KV heads [head_begin, head_end), global numbers; rows [begin, end) of the side that travels.
struct Part {
  int64_t head_begin = 0, head_end = 0;
  int64_t begin = 0, end = 0;
};

// A shard of `rows` rows and the heads of `whole`, in parts of equal size. chunk: at most as many
// bytes as so many rows of all heads; 0: a quarter of a shard, at least 192 rows of all heads.
std::vector<Part> parts_of(const Part& whole, int64_t chunk);

// The last part in halves and quarters. What comes last is computed when nothing travels any more:
// the smaller it is, the more is hidden.
std::vector<Part> tapered(std::vector<Part> parts);

}  // namespace rueda::attention

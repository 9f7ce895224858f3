#include "attention/tiles.h"

#include <algorithm>
#include <utility>

namespace rueda::attention {
namespace {

// Pairs (i, j) of the tile that lie in the band, without visiting each.
int64_t count_pairs(const Tile& tile, Band band) {
  const int64_t last_q = tile.q_pos + (tile.q.count - 1) * tile.q_step;
  const int64_t last_k = tile.k_pos + (tile.k.count - 1) * tile.k_step;
  if (tile.k_pos - last_q >= band.low && last_k - tile.q_pos <= band.high)
    return tile.q.count * tile.k.count;
  int64_t pairs = 0;
  const Run keys{tile.k_pos, tile.k.count, tile.k_step};
  for (int64_t i = 0; i < tile.q.count; ++i) {
    const int64_t q = tile.q_pos + i * tile.q_step;
    pairs += clip(keys, q + band.low, q + band.high).count;
  }
  return pairs;
}

// Index of position p in a run that has it.
int64_t index_in(const Run& run, int64_t p) { return (p - run.begin) / run.step; }

// Part of a run of a shard, and where the run begins in the shard.
struct Stretch {
  Run run, part;
  int64_t start = 0;
};

// The runs, as far as they have rows [begin, end).
std::vector<Stretch> stretches_of(const std::vector<Run>& runs, int64_t begin, int64_t end) {
  std::vector<Stretch> stretches;
  int64_t start = 0;
  for (const Run& run : runs) {
    const int64_t from = std::clamp<int64_t>(begin - start, 0, run.count);
    const int64_t to = std::clamp<int64_t>(end - start, 0, run.count);
    if (from < to) stretches.push_back({run, {run.at(from), to - from, run.step}, start});
    start += run.count;
  }
  return stretches;
}

// What of a component lies in two stretches; no pairs if nothing does.
Tile tile_of(Band band, const Component& c, const Part& part, const Stretch& queries,
             const Stretch& keys) {
  Tile tile;
  tile.head_step = c.head_step;
  tile.head_end = std::min(c.head_end, part.head_end);
  tile.head_begin = c.head_begin;
  if (tile.head_begin < part.head_begin) {
    tile.head_begin += ceil_div(part.head_begin - c.head_begin, c.head_step) * c.head_step;
  }
  if (tile.head_begin >= tile.head_end) return tile;
  Run q = intersect(queries.part, c.q);
  Run k = intersect(keys.part, c.k);
  if (q.count == 0 || k.count == 0) return tile;
  k = clip(k, q.begin + c.shift + band.low, q.last() + c.shift + band.high);
  if (k.count == 0) return tile;
  q = clip(q, k.begin - c.shift - band.high, k.last() - c.shift - band.low);
  if (q.count == 0) return tile;
  tile.q = {queries.start + index_in(queries.run, q.begin), q.count,
            q.count > 1 ? q.step / queries.run.step : 1};
  tile.k = {keys.start + index_in(keys.run, k.begin), k.count,
            k.count > 1 ? k.step / keys.run.step : 1};
  tile.q_pos = q.begin + c.shift;
  tile.q_step = q.step;
  tile.k_pos = k.begin;
  tile.k_step = k.step;
  tile.pairs = count_pairs(tile, band);
  return tile;
}

}  // namespace

std::vector<Tile> tiles_of(const AttentionPlan& plan, const Components& components,
                           const std::vector<Run>& q_tokens, const std::vector<Run>& k_tokens,
                           bool keys_travel, const Part& part) {
  std::vector<Tile> tiles;
  const int64_t q_begin = keys_travel ? 0 : part.begin, q_end = keys_travel ? kUnlimited : part.end;
  const int64_t k_begin = keys_travel ? part.begin : 0, k_end = keys_travel ? part.end : kUnlimited;
  const std::vector<Stretch> queries = stretches_of(q_tokens, q_begin, q_end);
  const std::vector<Stretch> keys = stretches_of(k_tokens, k_begin, k_end);
  const Overlaps of_keys(
      keys.size(), [&](size_t i) { return Interval{keys[i].part.begin, keys[i].part.last()}; });
  std::vector<std::pair<size_t, size_t>> met;  // stretch of keys, component
  for (const Stretch& stretch : queries) {
    met.clear();
    components.of_queries.each({stretch.part.begin, stretch.part.last()}, [&](size_t c) {
      const Run& k = components.all[c].k;
      of_keys.each({k.begin, k.last()}, [&](size_t i) { met.emplace_back(i, c); });
    });
    std::sort(met.begin(), met.end());
    for (const auto& [i, c] : met) {
      const Tile tile = tile_of(plan.band, components.all[c], part, stretch, keys[i]);
      if (tile.pairs > 0) tiles.push_back(tile);
    }
  }
  return tiles;
}

}  // namespace rueda::attention

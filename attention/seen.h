// Which keys of a tile a query sees. Functions of their own in every file: they are compiled for
// instruction sets that the running CPU may not have.
#pragma once

#include "attention/local_kernel.h"

namespace rueda::attention {

// The keys [from, to) of a tile.
struct Seen {
  int64_t from, to;
};

static inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t floor_quotient(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Those that query i sees.
static inline Seen seen_by(const KernelTile& tile, int64_t i) {
  const int64_t q = tile.q_pos + i * tile.q_step;
  // k_pos + j * k_step >= q + low, <= q + high
  int64_t from = q + tile.low - tile.k_pos, to = q + tile.high - tile.k_pos;
  if (tile.k_step != 1) {
    from = -floor_quotient(-from, tile.k_step);
    to = floor_quotient(to, tile.k_step);
  }
  ++to;
  return {max(from, 0), min(to, tile.keys)};
}

// What the queries [start, start + rows) see of the keys [block, block + block_keys), each in
// seen[0, most), relative to the block; nothing beyond `rows`. Returns what any of them sees.
static inline Seen seen_in_block(const KernelTile& tile, int64_t start, int64_t rows, int64_t most,
                                 int64_t block, int64_t block_keys, Seen* seen) {
  Seen any = {block_keys, 0};
  for (int64_t i = 0; i < most; ++i) {
    seen[i] = {0, 0};
    if (i >= rows) continue;
    const Seen one = seen_by(tile, start + i);
    seen[i] = {max(one.from - block, 0), min(one.to - block, block_keys)};
    if (seen[i].from >= seen[i].to) continue;
    any = {min(any.from, seen[i].from), max(any.to, seen[i].to)};
  }
  return any;
}

// What any of `rows` queries sees of the keys [part, part + part_keys) of a block, relative to
// part.
static inline Seen seen_in_part(const Seen* seen, int64_t rows, int64_t part, int64_t part_keys) {
  Seen any = {part_keys, 0};
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t from = max(seen[i].from - part, 0), to = min(seen[i].to - part, part_keys);
    if (from < to) any = {min(any.from, from), max(any.to, to)};
  }
  return any;
}

}  // namespace rueda::attention

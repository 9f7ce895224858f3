// Which keys of a tile a query sees. Functions of their own in every file: they are compiled for
// instruction sets that the running CPU may not have.
#pragma once

#include "attention/local_kernel.h"

namespace rueda::attention {

// The keys [from, to) of a tile.
struct Seen {
  int64_t from, to;
};

static inline int64_t floor_quotient(int64_t a, int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

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
  return {from > 0 ? from : 0, to < tile.keys ? to : tile.keys};
}

}  // namespace rueda::attention

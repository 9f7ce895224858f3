// What is computed next, and how its rows are fetched ahead: rows lie anywhere in memory. For code
// of every target, so no std:: (collectives/kernels/targets.h).
#pragma once

#include "attention/local_kernel.h"

namespace rueda::attention {

// Row `row` of `width` elements.
static inline void fetch_row(const RowsIn& rows, int64_t row, int64_t width) {
  const int64_t bytes = rows.dtype == 7 ? 4 : 2;
  const std::byte* from = rows.base + row * rows.stride * bytes;
  for (int64_t x = 0; x < width * bytes; x += 64) __builtin_prefetch(from + x);
}

// Float32 sums as rows.
static inline RowsIn rows_of(const float* sums, int64_t stride) {
  return {reinterpret_cast<const std::byte*>(sums), stride, 7};
}

// The queries and head that come after (start, head), where tiles have `most` queries.
struct NextQueries {
  int64_t start, head;
};
static inline NextQueries after(const KernelTile& tile, int64_t start, int64_t head, int64_t most) {
  return head + 1 < tile.head_count ? NextQueries{start, head + 1} : NextQueries{start + most, 0};
}

}  // namespace rueda::attention

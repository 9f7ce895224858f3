// The block kernel: what one thread block does with one item, for one head and batch. One source
// for the device and for tests on the host.
//
// Idea: 256 threads as 16 x 16. A tile of scores (kRows queries x kRows keys) lies in shared
// memory; thread (y, x) has the scores of queries y, y + 16, ... and keys x, x + 16, ..., and of
// its queries' sums the columns x, x + 16, .... Between two phases all threads meet. On the host a
// phase is a loop over the threads, and what a thread keeps is an array: the same arithmetic in the
// same order, so that the host's result is that of the device up to the rounding of exp and of
// fused products.
//
// Everything is float32; the products are plain, without tensor cores: first right, then fast. Cost
// per pair and head: 2 d operations forward, and 7 d in backward, which computes scores twice, once
// by queries and once by keys, so that each sum has one owner, needs no atomics and has the same
// bits each time.
#pragma once

#include "attention/cuda/elements.h"

namespace rueda::attention::cuda {

constexpr int kThreads = 256;
constexpr int kSide = 16;  // of the square of threads

#ifdef __CUDACC__
struct DeviceBlock {
  template <typename T>
  struct Own {
    T value;
    RUEDA_DEVICE T& operator[](int) { return value; }
  };
  template <typename Phase>
  RUEDA_DEVICE void each(const Phase& phase) const {
    phase(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
};
#endif

struct HostBlock {
  template <typename T>
  struct Own {
    T values[kThreads];
    T& operator[](int thread) { return values[thread]; }
  };
  template <typename Phase>
  void each(const Phase& phase) const {
    for (int thread = 0; thread < kThreads; ++thread) phase(thread);
  }
};

// Rows of a tile and columns of it, with one column more so that threads of a row hit different
// banks.
template <int kRows, int kWidth>
struct Tile {
  float at[kRows][kWidth + 1];
};

// Rows of a tensor into a tile, from `begin` on; zeros beyond the range and the head's width.
template <typename Element, int kRows, int kWidth>
RUEDA_DEVICE void load(int thread, const Strided& tensor, int64_t batch, int64_t head,
                       const RowRun& range, int64_t begin, int width, Tile<kRows, kWidth>* tile) {
  const Element* base =
      static_cast<const Element*>(tensor.data) + batch * tensor.batch + head * tensor.head;
  for (int i = thread; i < kRows * kWidth; i += kThreads) {
    const int row = i / kWidth, x = i % kWidth;
    float value = 0;
    if (begin + row < range.count && x < width)
      value = widen(base[(range.row + (begin + row) * range.step) * tensor.row + x]);
    tile->at[row][x] = value;
  }
}

RUEDA_DEVICE float* number(const Strided& tensor, int64_t batch, int64_t head, const RowRun& range,
                           int64_t i) {
  return static_cast<float*>(tensor.data) + batch * tensor.batch + head * tensor.head +
         (range.row + i * range.step) * tensor.row;
}

// Position of a key less that of a query: the item's i-th row and the range's j-th.
template <bool kOwnAreKeys>
RUEDA_DEVICE int64_t difference(const Item& item, int64_t i, const Range& range, int64_t j) {
  const int64_t own = range.own_pos + (item.at + i) * range.own_step;
  const int64_t other = range.pos + j * range.pos_step;
  return kOwnAreKeys ? own - other : other - own;
}

// Whether the query sees the key.
template <bool kOwnAreKeys>
RUEDA_DEVICE bool sees(const Item& item, int64_t i, const Range& range, int64_t j) {
  if (i >= item.rows.count || j >= range.rows.count) return false;
  const int64_t apart = difference<kOwnAreKeys>(item, i, range, j);
  return range.low <= apart && apart <= range.high;
}

// Whether anything is seen between the item's rows and `most` of the range's from j on; positions
// rise.
template <bool kOwnAreKeys>
RUEDA_DEVICE bool any_seen(const Item& item, const Range& range, int64_t j, int64_t most) {
  const int64_t last = (j + most < range.rows.count ? j + most : range.rows.count) - 1;
  const int64_t a = difference<kOwnAreKeys>(item, 0, range, last);
  const int64_t b = difference<kOwnAreKeys>(item, item.rows.count - 1, range, j);
  return (a < b ? a : b) <= range.high && (a < b ? b : a) >= range.low;
}

// The thread's products of rows of a with rows of b.
template <int kRows, int kWidth>
RUEDA_DEVICE void dot(int thread, const Tile<kRows, kWidth>& a, const Tile<kRows, kWidth>& b,
                      int width, float (&result)[kRows / kSide][kRows / kSide]) {
  constexpr int kEach = kRows / kSide;
  const int y = thread / kSide, x = thread % kSide;
  for (auto& row : result)
    for (float& value : row) value = 0;
  for (int c = 0; c < width; ++c) {
    float left[kEach], right[kEach];
    for (int i = 0; i < kEach; ++i) left[i] = a.at[y + kSide * i][c];
    for (int j = 0; j < kEach; ++j) right[j] = b.at[x + kSide * j][c];
    for (int i = 0; i < kEach; ++i)
      for (int j = 0; j < kEach; ++j) result[i][j] += left[i] * right[j];
  }
}

// The thread's part of sums += weights * values; or of transposed weights, whose rows are then the
// sums'.
template <bool kTransposed, int kRows, int kWidth>
RUEDA_DEVICE void multiply(int thread, const Tile<kRows, kRows>& weights,
                           const Tile<kRows, kWidth>& values,
                           float (&sums)[kRows / kSide][kWidth / kSide]) {
  constexpr int kEach = kRows / kSide, kColumns = kWidth / kSide;
  const int y = thread / kSide, x = thread % kSide;
  for (int k = 0; k < kRows; ++k) {
    float weight[kEach];
    for (int i = 0; i < kEach; ++i)
      weight[i] = kTransposed ? weights.at[k][y + kSide * i] : weights.at[y + kSide * i][k];
    for (int j = 0; j < kColumns; ++j) {
      const float value = values.at[k][x + kSide * j];
      for (int i = 0; i < kEach; ++i) sums[i][j] += weight[i] * value;
    }
  }
}

// The thread's sums from (or added to) memory.
template <bool kAdd, int kRows, int kWidth>
RUEDA_DEVICE void store(int thread, const Strided& tensor, int64_t batch, int64_t head,
                        const RowRun& rows, int width,
                        const float (&sums)[kRows / kSide][kWidth / kSide]) {
  for (int i = 0; i < kRows / kSide; ++i) {
    const int row = thread / kSide + kSide * i;
    if (row >= rows.count) continue;
    float* to = number(tensor, batch, head, rows, row);
    for (int j = 0; j < kWidth / kSide; ++j) {
      const int x = thread % kSide + kSide * j;
      if (x < width) to[x] = kAdd ? to[x] + sums[i][j] : sums[i][j];
    }
  }
}

// Rows of scores for each width of heads: what fits into 99 KB of shared memory.
constexpr int rows_for(int width, bool backward) {
  if (width <= 128) return backward ? 32 : 64;
  return backward ? 16 : 32;
}

}  // namespace rueda::attention::cuda

// Items: a batch of tensors cut into pieces of equal size, one for each thread block of a GPU.
//
// Idea: a block per (tensor, offset) and not per tensor, so that 102 MB in 161 tensors of 256 bytes
// to 9 MB keep every multiprocessor busy to the end. A launch carries its tensors as a parameter,
// no copy to the device is needed; a block finds its tensor by a binary search over 128 numbers.
//
// Pure, and the same code on both sides: plan() runs on the host, find() on the GPU and in tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#ifdef __CUDACC__
#define RUEDA_BOTH_SIDES __host__ __device__
#else
#define RUEDA_BOTH_SIDES
#endif

namespace rueda::cuda::kernels {

// One tensor: `count` elements from one place to another, which do not overlap (or are the same).
struct Copy {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t count = 0;
};

inline constexpr int kTensors = 128;  // of a launch: its table must fit 4 KB of parameters
inline constexpr int64_t kItemElements = 8192;  // 16 to 64 KB

// The tensors of one launch.
struct Table {
  Copy tensors[kTensors];
  uint32_t first[kTensors + 1];  // item of each tensor; then their number
  int32_t count = 0;
};
static_assert(sizeof(Table) <= 4096);

// Empty tensors are left out. A tensor of more items than a launch may have is cut.
std::vector<Table> plan(const std::vector<Copy>& tensors, size_t from_bytes, size_t to_bytes);

// An item's elements.
struct Item {
  int32_t tensor = 0;
  int64_t begin = 0;
  int64_t count = 0;
};
RUEDA_BOTH_SIDES inline Item find(const Table& table, uint32_t item) {
  int low = 0;
  int high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.first[middle] <= item)
      low = middle;
    else
      high = middle;
  }
  Item found;
  found.tensor = low;
  found.begin = static_cast<int64_t>(item - table.first[low]) * kItemElements;
  const int64_t left = table.tensors[low].count - found.begin;
  found.count = left < kItemElements ? left : kItemElements;
  return found;
}

}  // namespace rueda::cuda::kernels

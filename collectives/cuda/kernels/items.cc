#include "collectives/cuda/kernels/items.h"

#include <algorithm>

namespace rueda::cuda::kernels {
namespace {

constexpr int64_t kMostItems = int64_t{1} << 30;  // a grid's first extent has 2^31 - 1

}  // namespace

std::vector<Table> plan(const std::vector<Copy>& tensors, size_t from_bytes, size_t to_bytes) {
  std::vector<Table> tables;
  int64_t items = 0;
  const auto add = [&](const Copy& piece) {
    const int64_t more = (piece.count + kItemElements - 1) / kItemElements;
    if (tables.empty() || tables.back().count == kTensors || items + more > kMostItems) {
      tables.emplace_back();
      tables.back().first[0] = 0;
      items = 0;
    }
    Table& table = tables.back();
    table.tensors[table.count++] = piece;
    items += more;
    table.first[table.count] = static_cast<uint32_t>(items);
  };
  for (const Copy& tensor : tensors) {
    for (int64_t begin = 0; begin < tensor.count;) {
      const int64_t count = std::min(tensor.count - begin, kMostItems * kItemElements);
      add({static_cast<const std::byte*>(tensor.from) + static_cast<size_t>(begin) * from_bytes,
           static_cast<std::byte*>(tensor.to) + static_cast<size_t>(begin) * to_bytes, count});
      begin += count;
    }
  }
  return tables;
}

}  // namespace rueda::cuda::kernels

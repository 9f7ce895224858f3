// The cutting of a batch into equal items, by a host-side reference of the copy kernel.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "collectives/cuda/kernels/items.h"

namespace rueda::cuda::kernels {
namespace {

// What copy_items does, item by item, in any order.
void run(const Table& table, std::vector<uint32_t> order) {
  for (const uint32_t number : order) {
    const Item item = find(table, number);
    const Copy& tensor = table.tensors[item.tensor];
    std::memcpy(static_cast<std::byte*>(tensor.to) + item.begin * 4,
                static_cast<const std::byte*>(tensor.from) + item.begin * 4,
                static_cast<size_t>(item.count) * 4);
  }
}

TEST_CASE("every element of every tensor is in one item, whatever the sizes") {
  std::mt19937 random(7);
  std::vector<int64_t> sizes = {0, 1, kItemElements - 1, kItemElements, kItemElements + 1, 0, 3};
  for (int i = 0; i < 300; ++i)
    sizes.push_back(static_cast<int64_t>(random() % (3 * static_cast<uint32_t>(kItemElements))));
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<float> from(static_cast<size_t>(total));
  std::iota(from.begin(), from.end(), 1.0f);
  std::vector<float> to(from.size(), 0.0f);
  std::vector<Copy> tensors;
  for (size_t begin = 0; const int64_t size : sizes) {
    tensors.push_back({from.data() + begin, to.data() + begin, size});
    begin += static_cast<size_t>(size);
  }
  const std::vector<Table> tables = plan(tensors, 4, 4);
  CHECK(tables.size() == (sizes.size() - 2 + kTensors - 1) / kTensors);
  uint32_t items = 0;
  for (const Table& table : tables) {
    std::vector<uint32_t> order(table.first[table.count]);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);
    run(table, order);
    items += table.first[table.count];
  }
  CHECK(to == from);
  // Equal pieces: at most one smaller one for each tensor.
  CHECK(items <= total / kItemElements + static_cast<int64_t>(sizes.size()));
}

TEST_CASE("items of one tensor do not overlap, and are equal but for the last") {
  const Table table = plan({{nullptr, nullptr, 5 * kItemElements + 17}}, 2, 4).front();
  REQUIRE(table.first[1] == 6);
  int64_t end = 0;
  for (uint32_t item = 0; item < 6; ++item) {
    const Item found = find(table, item);
    CHECK(found.begin == end);
    CHECK(found.count == (item < 5 ? kItemElements : 17));
    end = found.begin + found.count;
  }
}

TEST_CASE("a tensor of more items than a grid may have is cut") {
  constexpr int64_t kMost = (int64_t{1} << 30) * kItemElements;
  const std::vector<Table> tables = plan({{nullptr, nullptr, kMost + 5}}, 1, 2);
  REQUIRE(tables.size() == 2);
  CHECK(tables[0].tensors[0].count == kMost);
  CHECK(tables[1].tensors[0].count == 5);
  CHECK(reinterpret_cast<uintptr_t>(tables[1].tensors[0].from) == kMost);
  CHECK(reinterpret_cast<uintptr_t>(tables[1].tensors[0].to) == 2 * kMost);
}

TEST_CASE("nothing gives no launch") { CHECK(plan({{nullptr, nullptr, 0}}, 4, 4).empty()); }

}  // namespace
}  // namespace rueda::cuda::kernels

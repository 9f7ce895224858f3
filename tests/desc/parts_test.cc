#include "collectives/desc/parts.h"

#include <catch2/catch.hpp>

#include "tests/support/patterns.h"

namespace rueda::communicator {
namespace {

// All lists of up to four parts of up to three elements each.
std::vector<std::vector<int64_t>> small_lists() {
  std::vector<std::vector<int64_t>> lists{{}};
  for (size_t done = 0; done < lists.size(); ++done) {
    if (lists[done].size() == 4) continue;
    for (int64_t count = 0; count <= 3; ++count) {
      auto longer = lists[done];
      longer.push_back(count);
      lists.push_back(longer);
    }
  }
  return lists;
}

TEST_CASE("the pieces of every range of every small batch are its elements in order", "[parts]") {
  bool right = true;
  for (const auto& counts : small_lists()) {
    std::vector<Part> parts;
    std::vector<std::pair<size_t, int64_t>> elements;  // part and place of every element
    for (const int64_t count : counts) {
      for (int64_t i = 0; i < count; ++i) elements.emplace_back(parts.size(), i);
      parts.push_back({nullptr, nullptr, count});
    }
    const PartList list(parts);
    const auto total = static_cast<int64_t>(elements.size());
    right &= list.total() == total;
    for (int64_t begin = 0; begin <= total; ++begin) {
      for (int64_t count = 0; begin + count <= total; ++count) {
        int64_t at = 0;
        list.for_each_piece(begin, count, [&](const Piece& piece) {
          right &= piece.count > 0 && piece.offset == at;
          for (int64_t i = 0; i < piece.count && at < count; ++i, ++at) {
            right &=
                elements[static_cast<size_t>(begin + at)] == std::pair(piece.part, piece.begin + i);
          }
        });
        right &= at == count;
      }
    }
  }
  CHECK(right);
}

TEST_CASE("packing and unpacking any range moves exactly its elements", "[parts]") {
  std::vector<int32_t> a{1, 2, 3};
  std::vector<int32_t> b{4};
  std::vector<int32_t> c{5, 6};
  const auto part = [](std::vector<int32_t>& v) {
    auto* bytes = reinterpret_cast<std::byte*>(v.data());
    return Part{bytes, bytes, static_cast<int64_t>(v.size())};
  };
  const std::vector<Part> parts{part(a), {nullptr, nullptr, 0}, part(b), part(c)};
  const PartList list(parts);
  std::vector<int32_t> packed(4);
  pack(list, DType::kInt32, 1, 4, 2.0, reinterpret_cast<std::byte*>(packed.data()));
  CHECK(packed == std::vector<int32_t>{4, 6, 8, 10});
  unpack(list, DType::kInt32, 2, 4, reinterpret_cast<const std::byte*>(packed.data()));
  CHECK(a == std::vector<int32_t>{1, 2, 4});
  CHECK(b == std::vector<int32_t>{6});
  CHECK(c == std::vector<int32_t>{8, 10});
}

TEST_CASE("shards cover everything once, begin on a unit and differ by at most one unit",
          "[parts]") {
  bool right = true;
  for (const int64_t unit : {1, 2, 16}) {
    for (Rank size = 1; size <= 9; ++size) {
      for (int64_t total = 0; total <= 200; ++total) {
        right &=
            shard_begin(total, 0, size, unit) == 0 && shard_begin(total, size, size, unit) == total;
        int64_t least = total + unit;
        int64_t most = 0;
        for (Rank rank = 0; rank < size; ++rank) {
          const int64_t begin = shard_begin(total, rank, size, unit);
          const int64_t end = shard_begin(total, rank + 1, size, unit);
          right &= begin <= end && (begin % unit == 0 || begin == total);
          least = std::min(least, (end - begin + unit - 1) / unit);
          most = std::max(most, (end - begin + unit - 1) / unit);
        }
        right &= most - least <= 1;
      }
    }
  }
  CHECK(right);
}

}  // namespace
}  // namespace rueda::communicator

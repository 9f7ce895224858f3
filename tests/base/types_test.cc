#include "collectives/base/types.h"

#include <catch2/catch.hpp>

namespace rueda {

TEST_CASE("split_rows gives the first ranks one more row and covers all rows", "[types]") {
  for (Rank size = 1; size <= 9; ++size) {
    for (int64_t rows = 0; rows <= 30; ++rows) {
      int64_t begin = 0;
      for (Rank rank = 0; rank < size; ++rank) {
        REQUIRE(split_begin(rows, rank, size) == begin);
        const int64_t mine = split_rows(rows, rank, size);
        REQUIRE(mine - split_rows(rows, size - 1, size) <= 1);
        REQUIRE(mine >= split_rows(rows, size - 1, size));
        begin += mine;
      }
      REQUIRE(begin == rows);
    }
  }
}

TEST_CASE("element counts follow the shape", "[types]") {
  CHECK(element_count({}) == 1);
  CHECK(element_count({0, 5}) == 0);
  CHECK(element_count({int64_t{1} << 20, int64_t{1} << 20}) == int64_t{1} << 40);
  CHECK(elements_per_row({7, 2, 3}) == 6);
  CHECK(describe(DType::kBFloat16, {128, 64}) == "bfloat16[128,64]");
}

TEST_CASE("every dtype has a size and a name", "[types]") {
  for (const DType dtype : kAllDTypes) {
    CHECK(is_valid(dtype));
    CHECK(size_of(dtype) >= 1);
    CHECK(std::string(name_of(dtype)) != "unknown dtype");
  }
  CHECK_FALSE(is_valid(static_cast<DType>(2)));
  CHECK_FALSE(is_valid(static_cast<DType>(18)));
  CHECK(size_of(DType::kComplex64) == 2 * size_of(component_of(DType::kComplex64)));
  CHECK(size_of(DType::kComplex128) == 2 * size_of(component_of(DType::kComplex128)));
}

TEST_CASE("each dtype is one of bool, integer, floating and complex", "[types]") {
  for (const DType dtype : kAllDTypes) {
    INFO(name_of(dtype));
    CHECK((dtype == DType::kBool) + is_integer(dtype) + is_floating(dtype) + is_complex(dtype) ==
          1);
  }
}

TEST_CASE("a dtype has the reductions that mean something", "[types]") {
  const auto count = [](DType dtype) {
    int found = has_reduction(dtype, ReduceOp::kAdasum) ? 1 : 0;
    for (const ReduceOp op : kElementwiseOps) found += has_reduction(dtype, op) ? 1 : 0;
    for (const ReduceOp op : kBitwiseOps) found += has_reduction(dtype, op) ? 1 : 0;
    return found;
  };
  CHECK(count(DType::kBool) == 7);     // no average, no Adasum
  CHECK(count(DType::kUInt64) == 8);   // no Adasum
  CHECK(count(DType::kFloat32) == 6);  // none of bits
  CHECK(count(DType::kFloat8E5M2) == 5);
  CHECK(count(DType::kComplex64) == 3);
  CHECK(has_reduction(DType::kComplex128, ReduceOp::kProduct));
}

}  // namespace rueda

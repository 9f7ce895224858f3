// How reductions are said to NCCL: a pure table.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>

#include "collectives/kernels/kernels.h"
#include "collectives/nccl/reduction.h"

namespace rueda::nccl {
namespace {

uint16_t bits(Type type, double factor) {
  std::byte room[8];
  write_factor(type, factor, room);
  uint16_t value;
  std::memcpy(&value, room, sizeof(value));
  return value;
}

TEST_CASE("averages of floats are NCCL's, other factors go onto the inputs") {
  CHECK(plan_reduction(DType::kFloat32, ReduceOp::kAverage, 1, 1.0 / 3, 1, 3)->op == kAvg);
  auto scaled = plan_reduction(DType::kFloat32, ReduceOp::kAverage, 3, 0.5 / 3, 1, 3);
  CHECK(scaled->factor == 0.5);
  CHECK(plan_reduction(DType::kFloat64, ReduceOp::kSum, 2, 0.5, 1, 3)->factor == 1);
}

TEST_CASE("factors of 16-bit tensors must be numbers of their type") {
  CHECK(plan_reduction(DType::kBFloat16, ReduceOp::kSum, 0.25, 1, 1, 4).ok());
  CHECK_FALSE(plan_reduction(DType::kBFloat16, ReduceOp::kSum, 1.0 / 3, 1, 1, 4).ok());
  CHECK_FALSE(plan_reduction(DType::kFloat16, ReduceOp::kSum, 1e6, 1, 1, 4).ok());
  CHECK(plan_reduction(DType::kFloat16, ReduceOp::kSum, 1.0009765625, 1, 1, 4).ok());
}

TEST_CASE("scales that NCCL has not are refused") {
  CHECK_FALSE(plan_reduction(DType::kFloat32, ReduceOp::kMax, 2, 1, 1, 4).ok());
  CHECK_FALSE(plan_reduction(DType::kInt64, ReduceOp::kSum, 2, 1, 1, 4).ok());
  CHECK(plan_reduction(DType::kBool, ReduceOp::kSum, 1, 1, 1, 4)->op == kMax);
  CHECK(plan_reduction(DType::kBool, ReduceOp::kProduct, 1, 1, 1, 4)->op == kMin);
}

TEST_CASE("unsigned integers are NCCL's where it has them") {
  CHECK(plan_reduction(DType::kUInt32, ReduceOp::kMax, 1, 1, 1, 4)->type == Type::kUInt32);
  CHECK(plan_reduction(DType::kUInt64, ReduceOp::kSum, 1, 1, 1, 4)->type == Type::kUInt64);
  CHECK_FALSE(plan_reduction(DType::kUInt32, ReduceOp::kAverage, 1, 1, 4, 4).ok());
  CHECK_THAT(plan_reduction(DType::kUInt16, ReduceOp::kSum, 1, 1, 1, 4).status().message(),
             Catch::Contains("no uint16") && Catch::Contains("use int32"));
}

TEST_CASE("complex numbers are added and averaged as two floats each") {
  auto sum = plan_reduction(DType::kComplex64, ReduceOp::kSum, 2, 1, 1, 4);
  REQUIRE(sum.ok());
  CHECK(sum->type == Type::kFloat32);
  CHECK(sum->parts == 2);
  CHECK(sum->factor == 2);
  auto average = plan_reduction(DType::kComplex128, ReduceOp::kAverage, 1, 1.0 / 3, 1, 3);
  REQUIRE(average.ok());
  CHECK(average->type == Type::kFloat64);
  CHECK(average->op == kAvg);
  CHECK(plan_reduction(DType::kFloat64, ReduceOp::kSum, 1, 1, 1, 4)->parts == 1);
  CHECK_THAT(plan_reduction(DType::kComplex64, ReduceOp::kProduct, 1, 1, 1, 4).status().message(),
             Catch::Contains("no product of complex64"));
}

TEST_CASE("8-bit floats are reduced by new libraries on new GPUs, and averaged but not scaled") {
  for (const DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    auto average = plan_reduction(dtype, ReduceOp::kAverage, 1, 1.0 / 3, 1, 3);
    REQUIRE(average.ok());
    CHECK(average->op == kAvg);
    CHECK_FALSE(plan_reduction(dtype, ReduceOp::kSum, 0.5, 1, 1, 3).ok());
    CHECK(check_reduction(average->type, 22400, 90).ok());
    CHECK(check_reduction(average->type, 22399, 90).code() == rueda::Code::kUnimplemented);
    CHECK(check_reduction(average->type, 22809, 89).code() == rueda::Code::kUnimplemented);
  }
  CHECK(check_reduction(Type::kBFloat16, 21400, 70).ok());
}

TEST_CASE("16-bit factors have the kernels' bits") {
  for (int exponent = -24; exponent <= 15; ++exponent) {
    for (const double sign : {1.0, -1.0}) {
      const double factor = std::ldexp(sign, exponent);
      const auto wide = static_cast<float>(factor);
      for (const auto& [type, dtype] :
           {std::pair{Type::kFloat16, DType::kFloat16}, {Type::kBFloat16, DType::kBFloat16}}) {
        uint16_t expected = 0;
        kernels::convert_from_f32(dtype, &wide, reinterpret_cast<std::byte*>(&expected), 1);
        CHECK(bits(type, factor) == expected);
      }
    }
  }
  CHECK(bits(Type::kFloat16, 1.5) == 0x3e00);
  CHECK(bits(Type::kFloat16, 0) == 0);
}

}  // namespace
}  // namespace rueda::nccl

#include "collectives/desc/scaling.h"

#include <catch2/catch.hpp>

#include <limits>

namespace rueda::communicator {
namespace {

Scaling plan(DType dtype, ReduceOp op, double prescale = 1, double postscale = 1) {
  auto scaling = plan_scaling(dtype, op, prescale, postscale, 4);
  if (!scaling.ok()) FAIL(scaling.status().to_string());
  return scaling.value();
}

TEST_CASE("integers are averaged by a division, floats by a factor", "[scaling]") {
  for (const DType dtype : kHostReducedDTypes) {
    if (dtype == DType::kBool) continue;
    INFO(name_of(dtype));
    const Scaling average = plan(dtype, ReduceOp::kAverage, 1, 3);
    CHECK(average.finish.divisor == (is_integer(dtype) ? 4 : 1));
    CHECK(average.finish.factor == (is_integer(dtype) ? 3.0 : 0.75));
    const Scaling sum = plan(dtype, ReduceOp::kSum, 1, 3);
    CHECK(sum.finish.divisor == 1);
    CHECK(sum.finish.factor == 3.0);
  }
}

TEST_CASE("only half precision with a user's scale is rounded before it is scaled", "[scaling]") {
  for (const DType dtype : kHostReducedDTypes) {
    if (dtype == DType::kBool) continue;
    INFO(name_of(dtype));
    const bool half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
    CHECK_FALSE(plan(dtype, ReduceOp::kAverage).finish.round_first);
    CHECK(plan(dtype, ReduceOp::kAverage, 2, 1).finish.round_first == half);
    CHECK(plan(dtype, ReduceOp::kSum, 1, 2).finish.round_first == half);
  }
}

TEST_CASE("what has no meaning is refused with the reason", "[scaling]") {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](DType dtype, ReduceOp op, double prescale, double postscale) {
    return plan_scaling(dtype, op, prescale, postscale, 4).status();
  };
  CHECK_THAT(refused(DType::kBool, ReduceOp::kAverage, 1, 1).message(), Catch::Contains("bool"));
  CHECK(refused(DType::kBool, ReduceOp::kSum, 2, 1).code() == Code::kInvalidArgument);
  CHECK(refused(DType::kBool, ReduceOp::kSum, 1, 1).ok());
  for (const DType dtype : {DType::kComplex64, DType::kComplex128}) {
    for (const ReduceOp op :
         {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAdasum, ReduceOp::kBitwiseAnd}) {
      CHECK_THAT(refused(dtype, op, 1, 1).message(),
                 Catch::Contains(name_of(dtype)) && Catch::Contains(": "));
    }
    CHECK_THAT(refused(dtype, ReduceOp::kMax, 1, 1).message(),
               Catch::Contains("no order; use sum, average or product"));
    CHECK(refused(dtype, ReduceOp::kProduct, 1, 2).ok());
  }
  CHECK(check_reduction(DType::kFloat8E5M2, ReduceOp::kSum, 1, 1, true).ok());
  CHECK_THAT(check_reduction(DType::kFloat8E5M2, ReduceOp::kSum, 1, 1, false).message(),
             Catch::Contains("are moved"));
  CHECK(check_reduction(DType::kUInt32, ReduceOp::kAverage, 0.5, 2, false).ok());
  for (const double bad : {infinity, -infinity, nan}) {
    CHECK(refused(DType::kFloat32, ReduceOp::kSum, bad, 1).code() == Code::kInvalidArgument);
    CHECK(refused(DType::kFloat32, ReduceOp::kSum, 1, bad).code() == Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace rueda::communicator

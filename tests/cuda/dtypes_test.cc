// Unsigned integers and complex numbers on GPUs, as far as NCCL has them.
#include <catch2/catch.hpp>

#include <complex>

#include "tests/cuda/gpu_world.h"

namespace rueda::testing {
namespace {

template <typename T>
Operation with(CollectiveKind kind, DType dtype, ReduceOp reduce_op, const std::vector<T>& in,
               std::vector<T>* out) {
  Operation op;
  op.kind = kind;
  op.dtype = dtype;
  op.reduce_op = reduce_op;
  op.shape = {static_cast<int64_t>(in.size())};
  op.input = reinterpret_cast<const std::byte*>(in.data());
  op.output = reinterpret_cast<std::byte*>(out->data());
  return op;
}

// Six tensors of this data in one group, so that they are packed, and one by itself: how many come
// out otherwise than expected.
template <typename T>
int wrong_sums(Runtime& runtime, Rank rank, DType dtype, ReduceOp op, const std::vector<T>& mine,
               const std::vector<T>& expected) {
  std::vector<std::vector<T>> data(7, mine);
  std::vector<Operation> group;
  for (size_t i = 0; i < data.size(); ++i) {
    group.push_back(on_gpu(with(CollectiveKind::kAllreduce, dtype, op, data[i], &data[i]), rank));
    group.back().name = std::to_string(i);
  }
  const Operation alone = group.back();
  group.pop_back();
  for (const RequestPtr& work : must(runtime.start(group, true))) must(finish(work));
  must(finish(start(runtime, alone)));
  int wrong = 0;
  for (const auto& each : data) wrong += each != expected;
  return wrong;
}

TEST_CASE("unsigned integers are reduced on GPUs where NCCL has them") {
  GpuWorld gpus(2);
  const auto wrong = gpus.world.run([](Rank rank, Runtime& runtime) {
    const auto r = static_cast<uint32_t>(rank);
    const std::vector<uint32_t> mine = {4000000000u - r, 2, r};
    const std::vector<uint64_t> wide = {uint64_t{1} << 52, r};
    int errors =
        wrong_sums(runtime, rank, DType::kUInt32, ReduceOp::kMax, mine, {4000000000u, 2, 1});
    errors += wrong_sums(runtime, rank, DType::kUInt32, ReduceOp::kMin, mine, {3999999999u, 2, 0});
    errors +=
        wrong_sums(runtime, rank, DType::kUInt64, ReduceOp::kSum, wide, {uint64_t{1} << 53, 1});
    return errors;
  });
  for (const int errors : wrong) CHECK(errors == 0);
}

template <typename Float>
int wrong_complex(Runtime& runtime, Rank rank, DType dtype) {
  using Number = std::complex<Float>;
  const auto r = static_cast<Float>(rank);
  const std::vector<Number> mine = {{1, r}, {r, -2}, {0, 4}};
  int errors =
      wrong_sums<Number>(runtime, rank, dtype, ReduceOp::kSum, mine, {{2, 1}, {1, -4}, {0, 8}});
  errors += wrong_sums<Number>(runtime, rank, dtype, ReduceOp::kAverage, mine,
                               {{1, 0.5}, {0.5, -2}, {0, 4}});
  std::vector<Number> part(rank == 0 ? 2 : 1);
  Operation op =
      on_gpu(with(CollectiveKind::kReducescatter, dtype, ReduceOp::kSum, mine, &part), rank);
  op.name = "rows";
  op.prescale = 0.5;
  must(finish(start(runtime, op)));
  return errors + (part != (rank == 0 ? std::vector<Number>{{1, 0.5}, {0.5, -2}}
                                      : std::vector<Number>{{0, 4}}));
}

TEST_CASE("complex numbers are added and averaged on GPUs") {
  GpuWorld gpus(2);
  const auto wrong = gpus.world.run([](Rank rank, Runtime& runtime) {
    return wrong_complex<float>(runtime, rank, DType::kComplex64) +
           wrong_complex<double>(runtime, rank, DType::kComplex128);
  });
  for (const int errors : wrong) CHECK(errors == 0);
}

}  // namespace
}  // namespace rueda::testing

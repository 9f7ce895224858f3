// 8-bit floats: moved like bytes on the CPU and on GPUs, reduced where NCCL and all GPUs can.
#include <catch2/catch.hpp>

#include "tests/cuda/gpu_world.h"
#include "tests/support/stub_nccl_numbers.h"

namespace rueda::testing {
namespace {

using Catch::Contains;
using Bits = std::vector<uint8_t>;

nccl::Type type_of(DType dtype) {
  return dtype == DType::kFloat8E4M3 ? nccl::Type::kFloat8E4M3 : nccl::Type::kFloat8E5M2;
}

Bits numbers(DType dtype, const std::vector<double>& values) {
  Bits bits;
  for (const double value : values) bits.push_back(stub::float8_bits(type_of(dtype), value));
  return bits;
}

Operation with(CollectiveKind kind, const std::string& name, DType dtype, const Bits& in,
               Bits* out) {
  Operation op;
  op.kind = kind;
  op.name = name;
  op.dtype = dtype;
  op.reduce_op = ReduceOp::kSum;
  op.shape = {static_cast<int64_t>(in.size())};
  op.input = reinterpret_cast<const std::byte*>(in.data());
  op.output = out == nullptr ? nullptr : reinterpret_cast<std::byte*>(out->data());
  return op;
}

Bits bits_of(const RequestPtr& work) {
  must(finish(work));
  Bits bits(static_cast<size_t>(element_count(work->output_shape())));
  std::memcpy(bits.data(), work->output(), bits.size());
  return bits;
}

TEST_CASE("the stub's 8-bit floats are OCP's") {
  CHECK(stub::float8_value(nccl::Type::kFloat8E4M3, 0x7e) == 448);
  CHECK(stub::float8_value(nccl::Type::kFloat8E5M2, 0x7b) == 57344);
  CHECK(stub::float8_value(nccl::Type::kFloat8E4M3, 0x01) == std::ldexp(1.0, -9));
  CHECK(stub::float8_value(nccl::Type::kFloat8E5M2, 0x81) == -std::ldexp(1.0, -16));
  CHECK(stub::float8_bits(nccl::Type::kFloat8E4M3, 1) == 0x38);
  CHECK(stub::float8_bits(nccl::Type::kFloat8E5M2, 1) == 0x3c);
  CHECK(stub::float8_bits(nccl::Type::kFloat8E4M3, 17) ==
        stub::float8_bits(nccl::Type::kFloat8E4M3, 16));
  CHECK(stub::float8_bits(nccl::Type::kFloat8E4M3, 1e6) == 0x7e);
}

TEST_CASE("8-bit floats on GPUs: sums, averages and extremes, one tensor and many packed ones") {
  const DType dtype = GENERATE(DType::kFloat8E4M3, DType::kFloat8E5M2);
  GpuWorld gpus(2);
  const auto wrong = gpus.world.run([&](Rank rank, Runtime& runtime) {
    int errors = 0;
    const std::vector<std::pair<ReduceOp, std::vector<double>>> expected = {
        {ReduceOp::kSum, {1, 5, -1, 0.5}},
        {ReduceOp::kAverage, {0.5, 2.5, -0.5, 0.25}},
        {ReduceOp::kMax, {1, 3, 0, 0.25}},
        {ReduceOp::kMin, {0, 2, -1, 0.25}},
        {ReduceOp::kProduct, {0, 6, 0, 0.0625}}};
    for (const auto& [reduce_op, result] : expected) {
      const double r = rank;
      std::vector<Bits> data(6, numbers(dtype, {r, 2 + r, -r, 0.25}));
      std::vector<Operation> operations;
      for (size_t i = 0; i < data.size(); ++i) {
        operations.push_back(on_gpu(
            with(CollectiveKind::kAllreduce, "r" + std::to_string(i), dtype, data[i], &data[i]),
            rank));
        operations.back().reduce_op = reduce_op;
      }
      for (const RequestPtr& work : must(runtime.start(operations, true))) must(finish(work));
      for (const Bits& bits : data) errors += bits != numbers(dtype, result);
    }
    return errors;
  });
  for (const int errors : wrong) CHECK(errors == 0);
}

TEST_CASE("8-bit floats are moved on GPUs and on the CPU, with every NCCL") {
  const DType dtype = GENERATE(DType::kFloat8E4M3, DType::kFloat8E5M2);
  const bool gpu = GENERATE(true, false);
  const Variable version("STUB_NCCL_VERSION", "21805");
  GpuWorld gpus(2);
  const auto wrong = gpus.world.run([&](Rank rank, Runtime& runtime) {
    const auto place = [&](const Operation& op) { return gpu ? on_gpu(op, rank) : op; };
    const uint8_t mine = static_cast<uint8_t>(0x10 + rank);
    int errors = 0;
    const Bits few(static_cast<size_t>(rank) + 1, mine);
    errors += bits_of(start(runtime, place(with(CollectiveKind::kAllgather, "g", dtype, few,
                                                nullptr)))) != Bits{0x10, 0x11, 0x11};
    Bits told = {mine, 0x7f, 0xff};  // NaNs keep their bits
    Operation broadcast = place(with(CollectiveKind::kBroadcast, "b", dtype, told, &told));
    broadcast.root = 1;
    must(finish(start(runtime, broadcast)));
    errors += told != Bits{0x11, 0x7f, 0xff};
    const Bits both = {mine, static_cast<uint8_t>(mine + 0x20)};
    Operation exchange = place(with(CollectiveKind::kAlltoall, "a", dtype, both, nullptr));
    exchange.splits = {1, 1};
    const uint8_t from = static_cast<uint8_t>(rank == 0 ? 0x10 : 0x30);
    errors += bits_of(start(runtime, exchange)) != Bits{from, static_cast<uint8_t>(from + 1)};
    return errors;
  });
  for (const int errors : wrong) CHECK(errors == 0);
}

TEST_CASE(
    "8-bit reductions that cannot be are refused alike on all ranks, and the next call works") {
  const DType dtype = DType::kFloat8E4M3;
  const bool old = GENERATE(true, false);
  const Variable refusal =
      old ? Variable("STUB_NCCL_VERSION", "22304") : Variable("FAKE_CUDA_CAPABILITY", "89");
  GpuWorld gpus(2);
  const auto texts = gpus.world.run([&](Rank rank, Runtime& runtime) {
    Bits data(6, 0x38);
    Floats floats = filled(4, 1);
    // The fake driver's last GPU is the old one.
    const Rank on = old || rank == 0 ? rank : 7;
    const Operation op = with(CollectiveKind::kAllreduce, "r", dtype, data, &data);
    std::vector<std::string> said = {call(runtime, on_gpu(op, on)).message()};
    must(finish(start(runtime, on_gpu(sum_of("y", &floats), on))));
    said.push_back(floats[0] == 2 ? "" : "wrong sum");
    said.push_back(runtime.start({op}, false).status().message());
    return said;
  });
  for (const auto& said : texts) {
    CHECK_THAT(said[0], Contains("compute capability 9.0") &&
                            Contains(old ? "here: NCCL 2.23.4, 9.0" : "here: NCCL 2.28.9, 8.9") &&
                            Contains("reduce the tensor as bfloat16"));
    CHECK(said[1] == "");
    CHECK_THAT(said[2], Contains("float8_e4m3fn tensors on the CPU are moved"));
  }
}

}  // namespace
}  // namespace rueda::testing

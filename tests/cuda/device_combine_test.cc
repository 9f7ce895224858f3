// Reductions that NCCL has not: by rueda's kernel, the CPU's bits; without it the same error on all
// ranks, which says what to do.
#include <catch2/catch.hpp>

#include <cstring>
#include <random>

#include "tests/cuda/gpu_world.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

using Catch::Contains;

int64_t combined() {
  return reinterpret_cast<int64_t (*)()>(
      dlsym(dlopen(built::kFakeKernels, RTLD_NOW), "fake_kernels_combined"))();
}

struct Case {
  DType dtype;
  ReduceOp op;
  double prescale;
  double postscale;
};

constexpr Case kCases[] = {
    {DType::kInt16, ReduceOp::kSum, 1, 1},         {DType::kInt16, ReduceOp::kAverage, 1, 1},
    {DType::kInt16, ReduceOp::kMin, 0.5, 3},       {DType::kUInt16, ReduceOp::kMax, 1, 1},
    {DType::kUInt16, ReduceOp::kProduct, 1, 1},    {DType::kInt64, ReduceOp::kAverage, 1, 0.7},
    {DType::kUInt8, ReduceOp::kAverage, 1, 1},     {DType::kInt32, ReduceOp::kSum, 1.5, 1},
    {DType::kUInt64, ReduceOp::kBitwiseXor, 1, 1}, {DType::kBool, ReduceOp::kBitwiseXor, 1, 1},
    {DType::kFloat32, ReduceOp::kMax, 2.5, 1},     {DType::kFloat64, ReduceOp::kProduct, 1, 0.1},
    {DType::kFloat16, ReduceOp::kSum, 0.3, 1},     {DType::kBFloat16, ReduceOp::kAverage, 0.7, 3},
    {DType::kComplex64, ReduceOp::kProduct, 1, 1}, {DType::kComplex128, ReduceOp::kProduct, 2, 0.3},
};

// The same on the host and on the GPU, in place.
std::string compare(Runtime& runtime, Rank rank, const Case& what, size_t count) {
  const size_t bytes = count * size_of(what.dtype);
  std::mt19937_64 random(static_cast<uint64_t>(rank) + count);
  std::vector<std::byte> input(bytes);
  for (std::byte& byte : input) byte = static_cast<std::byte>(random() & 0x3f);
  std::vector<std::byte> host = input, device = input;
  const std::string name =
      std::string(name_of(what.dtype)) + name_of(what.op) + std::to_string(count);
  for (auto* const memory : {&host, &device}) {
    Operation op;
    op.dtype = what.dtype;
    op.reduce_op = what.op;
    op.prescale = what.prescale;
    op.postscale = what.postscale;
    op.shape = {static_cast<int64_t>(count)};
    op.input = memory->data();
    op.output = memory->data();
    op.name = name + (memory == &host ? " host" : "");
    must(finish(start(runtime, memory == &host ? op : on_gpu(op, rank))));
  }
  return host == device ? "" : name + " differs";
}

}  // namespace

TEST_CASE("reductions that NCCL has not have the bits of the CPU's", "[device_combine]") {
  for (const Rank size : {1, 2, 3}) {
    const int64_t before = combined();
    GpuWorld gpus(size);
    const auto errors = gpus.world.run([](Rank rank, Runtime& runtime) -> std::string {
      for (const Case& what : kCases) {
        for (const size_t count : {size_t{0}, size_t{1}, size_t{50}, size_t{10007}}) {
          const std::string trouble = compare(runtime, rank, what, count);
          if (!trouble.empty()) return trouble;
        }
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
    CHECK(combined() > before);
  }
}

TEST_CASE("a group of tensors that NCCL cannot reduce, and again, in a plan", "[device_combine]") {
  GpuWorld gpus(3);
  const auto errors = gpus.world.run([](Rank rank, Runtime& runtime) -> std::string {
    for (int step = 0; step < 30; ++step) {
      std::vector<std::vector<int16_t>> data;
      for (size_t i = 0; i < 5; ++i)
        data.emplace_back(100 * i + 1, static_cast<int16_t>(10 * rank + step + int(i)));
      std::vector<RequestPtr> requests;
      for (size_t i = 0; i < data.size(); ++i) {
        Operation op;
        op.dtype = DType::kInt16;
        op.reduce_op = ReduceOp::kAverage;
        op.shape = {static_cast<int64_t>(data[i].size())};
        op.input = op.output = reinterpret_cast<std::byte*>(data[i].data());
        op.name = "x" + std::to_string(i);
        requests.push_back(start(runtime, on_gpu(op, rank)));
      }
      for (const RequestPtr& request : requests) must(finish(request));
      for (size_t i = 0; i < data.size(); ++i) {
        const auto expected = static_cast<int16_t>(10 + step + int(i));
        if (data[i] != std::vector<int16_t>(data[i].size(), expected))
          return "step " + std::to_string(step);
      }
    }
    return "";
  });
  for (const auto& error : errors) CHECK(error == "");
  CHECK(gpus.world[0].counter("planned_batches") > 0);
}

TEST_CASE("without rueda's kernels they are refused on all ranks, and the next call works",
          "[device_combine]") {
  Config config = gpu_config();
  config.cuda_kernels = "none";
  GpuWorld gpus(2, Kind::kShm, config);
  const auto texts = gpus.world.run([](Rank rank, Runtime& runtime) {
    std::vector<std::string> said;
    std::vector<uint16_t> small(4, 1);
    Operation op;
    op.dtype = DType::kUInt16;
    op.reduce_op = ReduceOp::kSum;
    op.shape = {4};
    op.input = op.output = reinterpret_cast<std::byte*>(small.data());
    op.name = "x";
    said.push_back(call(runtime, on_gpu(op, rank)).message());
    Floats floats = filled(4, 1);
    Operation scaled = on_gpu(sum_of("s", &floats), rank);
    scaled.reduce_op = ReduceOp::kMax;
    scaled.prescale = 2;
    said.push_back(call(runtime, scaled).message());
    must(finish(start(runtime, on_gpu(sum_of("y", &floats), rank))));
    said.push_back(floats[0] == 2 && small[0] == 1 ? "" : "touched");
    return said;
  });
  for (const auto& said : texts) {
    CHECK_THAT(said[0], Contains("NCCL has no uint16") && Contains("use int32") &&
                            Contains("librueda_cuda.so"));
    CHECK_THAT(said[1], Contains("scales of max") && Contains("scale the tensor before or after"));
    CHECK(said[2] == "");
  }
}

}  // namespace rueda::testing

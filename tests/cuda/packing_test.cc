// Many small GPU tensors in one buffer: what is packed, and that nothing but speed depends on it.
#include <catch2/catch.hpp>

#include "collectives/nccl/device_packing.h"
#include "tests/cuda/device_world.h"
#include "tests/support/built.h"
#include "tests/support/patterns.h"

namespace rueda::testing {
namespace {

using nccl::DeviceCommunicator;
using nccl::plan_packing;

int64_t copies() {
  static const auto count = reinterpret_cast<int64_t (*)()>(
      dlsym(dlopen(built::kFakeKernels, RTLD_NOW), "fake_kernels_copies"));
  return count();
}

// Whole numbers of a type, one tensor for each count.
struct Tensors {
  Tensors(DType type, const std::vector<size_t>& counts, Rank rank) : dtype(type) {
    for (const size_t count : counts) {
      std::vector<double> values(count);
      for (size_t i = 0; i < count; ++i)
        values[i] = static_cast<double>((i + count) % 13 + static_cast<size_t>(rank));
      data.push_back(to_bytes(type, values));
    }
  }
  std::vector<Part> parts() {
    std::vector<Part> all;
    for (auto& tensor : data)
      all.push_back(
          {tensor.data(), tensor.data(), static_cast<int64_t>(tensor.size() / size_of(dtype))});
    return all;
  }
  DType dtype;
  std::vector<std::vector<std::byte>> data;
};

// Every rank's tensors behind the reduction.
auto reduced(DType dtype, const std::vector<size_t>& counts, ReduceOp op,
             const std::function<void(Rank, nccl::Machine::Options*)>& change = {}) {
  return on_device_ranks(
      3,
      [&](DeviceRank& here) {
        Tensors mine(dtype, counts, here.rank());
        for (int time = 0; time < 2; ++time) {  // the buffer is used again
          here.finish([&](DeviceCommunicator& c) {
            return testing::allreduce(c, mine.parts(), dtype, op,
                                      must(plan_scaling(dtype, op, 1, 1, 3)));
          });
        }
        return mine.data;
      },
      change);
}

TEST_CASE("packed tensors are reduced to the same bits as tensors one by one") {
  const DType dtype = GENERATE(DType::kFloat32, DType::kBFloat16, DType::kFloat64, DType::kUInt8,
                               DType::kUInt32, DType::kComplex64, DType::kComplex128);
  const std::vector<size_t> counts = {1, 33, 0, 20000, 7, 9000, 8};
  const int64_t before = copies();
  const auto packed = reduced(dtype, counts, ReduceOp::kSum);
  CHECK(copies() == before + 3 * 2 * 2);  // ranks x times x in and out
  const auto plain =
      reduced(dtype, counts, ReduceOp::kSum,
              [](Rank, nccl::Machine::Options* options) { options->kernels = "none"; });
  CHECK(copies() == before + 3 * 2 * 2);
  CHECK(packed == plain);
}

TEST_CASE("the buffer is NCCL's memory and known to NCCL as far as that has such calls") {
  const auto number = [](const char* library, const char* name) {
    return reinterpret_cast<int64_t (*)()>(dlsym(dlopen(library, RTLD_NOW), name))();
  };
  const std::vector<size_t> counts(6, 100);
  const int64_t packed = copies();
  const auto run = [&](const char* library, nccl::Registers registers) {
    return reduced(DType::kFloat32, counts, ReduceOp::kSum,
                   [&](Rank, nccl::Machine::Options* options) {
                     options->library = library;
                     options->registers = registers;
                   });
  };
  const int64_t before = number(built::kStubNccl, "stub_nccl_registered");
  const int64_t windows = number(built::kStubNccl, "stub_nccl_windows");
  const int64_t given = number(built::kStubNccl, "stub_nccl_given_now");
  const auto made = [&](int64_t locally, int64_t as_windows) {
    CHECK(number(built::kStubNccl, "stub_nccl_registered") == before + locally);
    CHECK(number(built::kStubNccl, "stub_nccl_windows") == windows + as_windows);
    CHECK(number(built::kStubNccl, "stub_nccl_registered_now") == 0);
    CHECK(number(built::kStubNccl, "stub_nccl_given_now") == given);
  };
  const auto as_windows = run(built::kStubNccl, nccl::Registers::kWindows);
  made(0, 3);
  CHECK(run(built::kStubNccl, nccl::Registers::kLocal) == as_windows);
  made(3, 3);
  CHECK(run(built::kStubNccl, nccl::Registers::kNone) == as_windows);
  made(3, 3);
  {
    const Variable cannot("STUB_NCCL_NO_WINDOWS", "1");
    CHECK(run(built::kStubNccl, nccl::Registers::kWindows) == as_windows);
  }
  made(6, 3);
  const int64_t elsewhere = number(built::kStubNcclWindowless, "stub_nccl_registered");
  CHECK(run(built::kStubNcclWindowless, nccl::Registers::kWindows) == as_windows);
  CHECK(number(built::kStubNcclWindowless, "stub_nccl_registered") == elsewhere + 3);
  CHECK(run(built::kStubNcclOld, nccl::Registers::kWindows) == as_windows);
  made(6, 3);
  CHECK(copies() == packed + 6 * 3 * 2 * 2);
}

TEST_CASE("where one rank has no kernels nobody packs") {
  const int64_t before = copies();
  const std::vector<size_t> counts(6, 100);
  const auto some = reduced(DType::kFloat32, counts, ReduceOp::kMax,
                            [](Rank rank, nccl::Machine::Options* options) {
                              if (rank == 1) options->kernels = "/nowhere/librueda_cuda.so";
                            });
  const Variable broken("FAKE_KERNELS_BROKEN", "1");
  const auto none = reduced(DType::kFloat32, counts, ReduceOp::kMax);
  CHECK(some == none);
  CHECK(copies() == before);
}

TEST_CASE("one tensor, large ones and more than the buffer holds are reduced where they lie") {
  const auto packs = [](const std::vector<int64_t>& counts) {
    std::vector<Part> parts;
    for (const int64_t count : counts) parts.push_back({nullptr, nullptr, count});
    return plan_packing(parts, DType::kFloat32, nullptr).has_value();
  };
  CHECK(packs({1, 1}));
  CHECK_FALSE(packs({1}));
  CHECK(packs(std::vector<int64_t>(4, 1 << 20)));
  CHECK_FALSE(packs(std::vector<int64_t>(3, 3 << 20)));
  CHECK_FALSE(packs(std::vector<int64_t>(1000, 10000)));  // 40 MB
  CHECK(packs(std::vector<int64_t>(500, 10000)));
  CHECK_FALSE(packs({1, 1, 1, 1, 1, 1, 1, 1, 1, int64_t{1} << 60}));
}

TEST_CASE("packed tensors lie at addresses that kernels can access in whole vectors") {
  std::vector<Part> parts;
  for (const int64_t count : {3, 5, 1, 100}) parts.push_back({nullptr, nullptr, count});
  const auto packing = plan_packing(parts, DType::kFloat16, nullptr);
  REQUIRE(packing.has_value());
  CHECK(packing->count == 8 + 8 + 8 + 104);
  REQUIRE(packing->in.size() == 1);
  for (int i = 0; i < 4; ++i)
    CHECK(reinterpret_cast<uintptr_t>(packing->in[0].tensors[i].to) % 16 == 0);
}

}  // namespace
}  // namespace rueda::testing

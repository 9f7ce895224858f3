// The kernel of reductions that NCCL has not, compiled for the host, against the CPU's kernels: the
// same bits for every dtype, reduction and scale.
#include <catch2/catch.hpp>

#include <cstring>
#include <random>
#include <vector>

#include "collectives/cuda/kernels/combine.h"
#include "collectives/desc/scaling.h"
#include "collectives/kernels/kernels.h"

namespace rueda::cuda::kernels {
namespace {

constexpr size_t kCount = 1500;

// Any bits: denormals, infinities and NaNs with payloads too; half of them small numbers.
std::vector<std::byte> random_input(DType dtype, std::mt19937_64* random) {
  std::vector<std::byte> bytes(kCount * size_of(dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((*random)());
  const DType part = is_complex(dtype) ? component_of(dtype) : dtype;
  const size_t unit = size_of(part);
  std::normal_distribution<float> normal(0, 3);
  for (size_t i = 0; i < bytes.size() / unit; i += 2) {
    const float value = normal(*random);
    std::byte* const to = bytes.data() + i * unit;
    if (part == DType::kFloat32) std::memcpy(to, &value, 4);
    if (part == DType::kFloat16 || part == DType::kBFloat16)
      rueda::kernels::convert_from_f32(part, &value, to, 1);
    const double wide = value;
    if (part == DType::kFloat64) std::memcpy(to, &wide, 8);
    if (part == DType::kBool && i % 4 == 0) *to = std::byte{0};
  }
  return bytes;
}

// How many elements of the two differ, and are not both some NaN that is copied.
std::string difference(DType dtype, ReduceOp op, Rank size, double prescale, double postscale) {
  auto scaling = plan_scaling(dtype, op, prescale, postscale, size);
  if (!scaling.ok()) return "";
  std::mt19937_64 random(static_cast<uint64_t>(dtype) * 100 + static_cast<uint64_t>(op));
  std::vector<std::vector<std::byte>> inputs, prepared;
  std::vector<const std::byte*> pointers;
  std::vector<std::byte> lined_up;
  for (Rank rank = 0; rank < size; ++rank) {
    inputs.push_back(random_input(dtype, &random));
    prepared.emplace_back(inputs.back().size());
    rueda::kernels::scaled_copy(dtype, inputs.back().data(), prepared.back().data(), kCount,
                                scaling->prescale);
    lined_up.insert(lined_up.end(), inputs.back().begin(), inputs.back().end());
  }
  for (const auto& input : prepared) pointers.push_back(input.data());
  const size_t bytes = kCount * size_of(dtype);
  std::vector<std::byte> expected(bytes);
  rueda::kernels::reduce(dtype, op, pointers, expected.data(), kCount, scaling->finish);
  const Rank mine = size / 2;  // in place
  Combination c;
  c.own = c.out = inputs[static_cast<size_t>(mine)].data();
  c.others = lined_up.data();
  c.stride = static_cast<int64_t>(bytes);
  c.count = kCount;
  c.rank = mine;
  c.size = size;
  c.element = static_cast<Element>(dtype);
  c.op = static_cast<Combine>(op);
  c.prescale = scaling->prescale;
  c.factor = scaling->finish.factor;
  c.divisor = scaling->finish.divisor;
  c.round_first = scaling->finish.round_first ? 1 : 0;
  const bool known = with_format(c.element, [&](auto format) {
    for (int64_t i = 0; i < c.count; ++i) combine_one<decltype(format)>(c, i);
  });
  if (!known) return "no such element";
  const auto& got = inputs[static_cast<size_t>(mine)];
  for (size_t i = 0; i < kCount; ++i) {
    if (std::memcmp(&got[i * size_of(dtype)], &expected[i * size_of(dtype)], size_of(dtype)) != 0)
      return std::string(name_of(dtype)) + " " + name_of(op) + " of " + std::to_string(size) +
             " ranks, scales " + std::to_string(prescale) + " and " + std::to_string(postscale) +
             ": element " + std::to_string(i);
  }
  return "";
}

TEST_CASE("the GPU's reductions have the bits of the CPU's") {
  const std::pair<double, double> scales[] = {{1, 1}, {0.3, 1}, {1, 1.0 / 3}, {-2.5, 7}, {1e9, 1}};
  for (const DType dtype : kHostReducedDTypes) {
    for (const auto& ops :
         {std::span<const ReduceOp>(kElementwiseOps), std::span<const ReduceOp>(kBitwiseOps)}) {
      for (const ReduceOp op : ops) {
        for (const Rank size : {1, 2, 3, 5}) {
          for (const auto& [prescale, postscale] : scales)
            CHECK(difference(dtype, op, size, prescale, postscale) == "");
        }
      }
    }
  }
}

TEST_CASE("an unknown element is no reduction") {
  for (const int unknown : {2, 11, 12, 18})
    CHECK_FALSE(with_format(static_cast<Element>(unknown), [](auto) {}));
}

}  // namespace
}  // namespace rueda::cuda::kernels

// What happens after the combination: divisor, factor, rounding points. And scaled_copy.
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "collectives/kernels/kernels.h"
#include "tests/kernels/reference.h"

namespace rueda::kernels {
namespace {

using reference::Bytes;
using reference::Pattern;

template <typename T>
std::vector<T> sum_of_one(DType dtype, const std::vector<T>& values, const Finish& finish) {
  const auto* in = reinterpret_cast<const std::byte*>(values.data());
  std::vector<T> out(values.size());
  reduce(dtype, ReduceOp::kSum, {&in, 1}, reinterpret_cast<std::byte*>(out.data()), values.size(),
         finish);
  return out;
}

template <typename T>
std::vector<T> scaled(DType dtype, const std::vector<T>& values, double factor) {
  std::vector<T> out(values.size());
  scaled_copy(dtype, reinterpret_cast<const std::byte*>(values.data()),
              reinterpret_cast<std::byte*>(out.data()), values.size(), factor);
  return out;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("every finish gives the reference's bits on every dtype and target", "[kernels]") {
  const DType dtype =
      GENERATE(from_range(std::begin(kHostReducedDTypes), std::end(kHostReducedDTypes)));
  if (dtype == DType::kBool) return;  // neither factor nor divisor
  const auto pattern = GENERATE(Pattern::kBits, Pattern::kTame, Pattern::kSpecial);
  std::vector<Finish> finishes;
  for (const double factor : {1.0, 0.5, -1.0, 1.0 / 3, 1e-30, 3e10, 0.0, kInfinity, kNaN}) {
    for (const bool round_first : {false, true}) finishes.push_back({factor, 1, round_first});
    if (is_integer(dtype)) finishes.push_back({factor, 3, false});
  }
  std::mt19937_64 random(5);
  for (const size_t n : {1, 3}) {
    std::vector<Bytes> inputs;
    std::vector<const std::byte*> pointers;
    for (size_t k = 0; k < n; ++k) {
      inputs.push_back(reference::random_elements(dtype, pattern, 9001, random));
    }
    for (const Bytes& input : inputs) pointers.push_back(input.data());
    for (const Finish& finish : finishes) {
      const Bytes expected = reference::reduce(dtype, ReduceOp::kSum, inputs, finish);
      reference::with_each_target([&](const std::string& target) {
        INFO(name_of(dtype) << ' ' << target << ", " << n << " inputs, factor " << finish.factor
                            << ", divisor " << finish.divisor << ", round_first "
                            << finish.round_first);
        Bytes out(expected.size());
        reduce(dtype, ReduceOp::kSum, pointers, out.data(), 9001, finish);
        REQUIRE((out == expected));  // in parentheses: Catch would print all the bytes
        if (n == 1 && finish.divisor == 1) {
          Bytes copy = inputs[0];
          scaled_copy(dtype, copy.data(), copy.data(), 9001, finish.factor);
          REQUIRE((copy == expected));
        }
      });
    }
  }
}

TEST_CASE("integer averages truncate toward zero and are exact", "[kernels]") {
  const Finish third{1.0, 3, false};
  CHECK(sum_of_one<int32_t>(DType::kInt32, {7, -7, 6, -6, 2, -2, 0}, third) ==
        std::vector<int32_t>{2, -2, 2, -2, 0, 0, 0});
  CHECK(sum_of_one<uint8_t>(DType::kUInt8, {255, 2}, third) == std::vector<uint8_t>{85, 0});
  CHECK(sum_of_one<uint64_t>(DType::kUInt64, {~uint64_t{0}, uint64_t{1} << 63}, third) ==
        std::vector<uint64_t>{~uint64_t{0} / 3, (uint64_t{1} << 63) / 3});
  // A product with 1/49 would give 0 here.
  CHECK(sum_of_one<int64_t>(DType::kInt64, {49, -49}, {1.0, 49, false}) ==
        std::vector<int64_t>{1, -1});
}

TEST_CASE("integer division is right for every divisor at the edges", "[kernels]") {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= 300; ++d) divisors.push_back(d);
  for (int shift = 9; shift < 63; ++shift) {
    const int64_t power = int64_t{1} << shift;
    divisors.insert(divisors.end(), {power - 1, power, power + 1});
  }
  divisors.insert(divisors.end(), {kMax - 1, kMax});
  std::mt19937_64 random(13);
  for (const int64_t d : divisors) {
    std::vector<int64_t> values = {0, 1, -1, kMax, kMin, kMax - 1, kMin + 1};
    for (int i = 0; i < 20; ++i) {
      const auto bits = static_cast<int64_t>(random()) >> (i * 3);
      const int64_t multiple = bits / d * d;
      for (const int64_t v : {bits, multiple}) values.push_back(v);
      if (multiple > kMin) values.push_back(multiple - 1);
      if (multiple < kMax) values.push_back(multiple + 1);
    }
    for (const int64_t v : {kMax / d * d, kMin / d * d}) {
      values.push_back(v);
      if (v > kMin) values.push_back(v - 1);
      if (v < kMax) values.push_back(v + 1);
    }
    std::vector<int64_t> expected;
    for (const int64_t v : values) expected.push_back(v / d);
    INFO("divisor " << d);
    REQUIRE(sum_of_one(DType::kInt64, values, {1.0, d, false}) == expected);
  }
}

TEST_CASE("scaled integers are truncated toward zero and limited to the dtype", "[kernels]") {
  CHECK(scaled<int32_t>(DType::kInt32, {3, -3, 5, -5}, 0.5) == std::vector<int32_t>{1, -1, 2, -2});
  CHECK(scaled<int8_t>(DType::kInt8, {100, -100, 63, -64}, 2.0) ==
        std::vector<int8_t>{127, -128, 126, -128});
  CHECK(scaled<uint8_t>(DType::kUInt8, {200, 1}, 2.0) == std::vector<uint8_t>{255, 2});
  CHECK(scaled<uint8_t>(DType::kUInt8, {200, 0}, -1.0) == std::vector<uint8_t>{0, 0});
  CHECK(scaled<uint32_t>(DType::kUInt32, {3000000000u, 7}, 2.0) ==
        std::vector<uint32_t>{~uint32_t{0}, 14});
  CHECK(scaled<uint64_t>(DType::kUInt64, {uint64_t{1} << 63, 0}, 0.5) ==
        std::vector<uint64_t>{uint64_t{1} << 62, 0});
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  CHECK(scaled<int64_t>(DType::kInt64, {kMax, kMin, 0}, kInfinity) ==
        std::vector<int64_t>{kMax, kMin, 0});
  CHECK(scaled<int64_t>(DType::kInt64, {kMax, kMin}, kNaN) == std::vector<int64_t>{0, 0});
}

TEST_CASE("round_first rounds the sum before the factor, otherwise there is one rounding",
          "[kernels]") {
  // f16 holds only even numbers above 2048: 2049 is rounded to 2048 first, and 2048 * 1.5 = 3072;
  // without that, 2049 * 1.5 = 3073.5 is rounded to 3074.
  const uint16_t big = 0x6800;  // 2048
  const uint16_t one = 0x3c00;
  const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(&big),
                               reinterpret_cast<const std::byte*>(&one)};
  reference::with_each_target([&](const std::string& target) {
    INFO(target);
    uint16_t out = 0;
    auto* bytes = reinterpret_cast<std::byte*>(&out);
    reduce(DType::kFloat16, ReduceOp::kSum, inputs, bytes, 1, {1.5, 1, true});
    CHECK(reference::decode_f16(out) == 3072.0);
    reduce(DType::kFloat16, ReduceOp::kSum, inputs, bytes, 1, {1.5, 1, false});
    CHECK(reference::decode_f16(out) == 3074.0);
  });
}

TEST_CASE("f32 is scaled by the factor rounded to f32, f64 natively", "[kernels]") {
  const double factor = 0.1;
  reference::with_each_target([&](const std::string& target) {
    INFO(target);
    CHECK(scaled<float>(DType::kFloat32, {3.0f}, factor)[0] == 3.0f * 0.1f);
    CHECK(scaled<double>(DType::kFloat64, {3.0}, factor)[0] == 3.0 * 0.1);
  });
}

TEST_CASE("a factor of one copies every bit, NaN payloads too", "[kernels]") {
  const std::vector<uint32_t> nans = {0x7f800001u, 0xffc12345u, 0x80000000u, 1u};
  CHECK(scaled<uint32_t>(DType::kFloat32, nans, 1.0) == nans);
}

}  // namespace rueda::kernels

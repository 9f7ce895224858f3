// Every dtype, op, number of inputs, size, alignment and target against the reference.
#include <catch2/catch.hpp>
#include <complex>
#include <cstring>

#include "collectives/kernels/kernels.h"
#include "tests/kernels/reference.h"

namespace rueda::kernels {
namespace {

using reference::Bytes;
using reference::Pattern;

constexpr Pattern kAllPatterns[] = {Pattern::kBits, Pattern::kTame, Pattern::kSpecial};
constexpr size_t kSizes[] = {0, 1, 7, 63, 64, 65, 1000};

std::vector<Bytes> random_inputs(DType dtype, Pattern pattern, size_t n, size_t count,
                                 std::mt19937_64& random) {
  std::vector<Bytes> inputs;
  for (size_t k = 0; k < n; ++k) {
    inputs.push_back(reference::random_elements(dtype, pattern, count, random));
  }
  return inputs;
}

// Memory at a chosen distance from alignment, with guard bytes on both sides.
class Placed {
 public:
  Placed(size_t shift, size_t bytes) : begin_(64 + shift), bytes_(bytes) {
    memory_.assign(begin_ + bytes + 64, kGuard);
  }
  Placed(size_t shift, const Bytes& content) : Placed(shift, content.size()) {
    std::copy(content.begin(), content.end(), memory_.begin() + static_cast<ptrdiff_t>(begin_));
  }
  std::byte* data() { return memory_.data() + begin_; }
  bool holds(const Bytes& expected) const {
    return bytes_ == expected.size() &&
           std::equal(expected.begin(), expected.end(),
                      memory_.begin() + static_cast<ptrdiff_t>(begin_));
  }
  bool guards_are_intact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr std::byte kGuard{0xa5};
  size_t begin_;
  size_t bytes_;
  std::vector<std::byte> memory_;
};

// in_place < inputs.size(): the output is that input.
bool reduces_to(const Bytes& expected, DType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                const Finish& finish, size_t shift, size_t in_place) {
  std::vector<Placed> placed;
  for (size_t k = 0; k < inputs.size(); ++k) placed.emplace_back(shift * (k + 1), inputs[k]);
  Placed separate(shift * 3, expected.size());
  Placed& out = in_place < inputs.size() ? placed[in_place] : separate;
  std::vector<const std::byte*> pointers;
  for (Placed& input : placed) pointers.push_back(input.data());
  reduce(dtype, op, pointers, out.data(), expected.size() / size_of(dtype), finish);
  bool others_unchanged = true;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (k != in_place) others_unchanged = others_unchanged && placed[k].holds(inputs[k]);
  }
  return out.holds(expected) && out.guards_are_intact() && others_unchanged;
}

}  // namespace

TEST_CASE("reduce gives the reference's bits for every dtype, op, size and target", "[kernels]") {
  const DType dtype =
      GENERATE(from_range(std::begin(kHostReducedDTypes), std::end(kHostReducedDTypes)));
  const ReduceOp op = GENERATE(from_range(std::begin(kElementwiseOps), std::end(kElementwiseOps)),
                               from_range(std::begin(kBitwiseOps), std::end(kBitwiseOps)));
  if (!has_reduction(dtype, op)) return;
  std::mt19937_64 random(7);
  for (const Pattern pattern : kAllPatterns) {
    for (const size_t n : {1, 2, 3, 5, 8}) {
      for (const size_t count : kSizes) {
        const auto inputs = random_inputs(dtype, pattern, n, count, random);
        const Bytes expected = reference::reduce(dtype, op, inputs);
        reference::with_each_target([&](const std::string& target) {
          for (const size_t shift : {0, 1}) {
            INFO(name_of(dtype) << ' ' << name_of(op) << ", " << n << " inputs of " << count
                                << " elements, pattern " << static_cast<int>(pattern) << ", "
                                << target << ", shift " << shift);
            REQUIRE(reduces_to(expected, dtype, op, inputs, {}, shift, n));
          }
        });
      }
    }
  }
}

TEST_CASE("the output may be any one of the inputs", "[kernels]") {
  const DType dtype =
      GENERATE(from_range(std::begin(kHostReducedDTypes), std::end(kHostReducedDTypes)));
  const size_t n = GENERATE(1, 2, 5);
  const size_t count = GENERATE(3, 1000, 20000);
  std::mt19937_64 random(11);
  const auto inputs = random_inputs(dtype, Pattern::kTame, n, count, random);
  std::vector<Finish> finishes(1);
  if (dtype != DType::kBool) finishes.push_back({0.75, 1, true});
  if (is_integer(dtype)) finishes.push_back({1.0, 3, false});
  for (const Finish& finish : finishes) {
    const Bytes expected = reference::reduce(dtype, ReduceOp::kSum, inputs, finish);
    reference::with_each_target([&](const std::string& target) {
      for (size_t in_place = 0; in_place < n; ++in_place) {
        INFO(name_of(dtype) << ", " << n << " inputs, onto " << in_place << ", " << target);
        REQUIRE(reduces_to(expected, dtype, ReduceOp::kSum, inputs, finish, 1, in_place));
      }
    });
  }
}

TEST_CASE("min and max of floats keep NaN and order the zeros, whatever the input order",
          "[kernels]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Row {
    float a, b, min, max;
  };
  const Row rows[] = {{0.0f, -0.0f, -0.0f, 0.0f},
                      {-0.0f, 0.0f, -0.0f, 0.0f},
                      {nan, 1.0f, nan, nan},
                      {1.0f, -nan, nan, nan},
                      {-2.0f, 3.0f, -2.0f, 3.0f}};
  const auto same_bits = [](float x, float y) { return std::memcmp(&x, &y, sizeof x) == 0; };
  reference::with_each_target([&](const std::string& target) {
    INFO(target);
    for (const Row& row : rows) {
      const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(&row.a),
                                   reinterpret_cast<const std::byte*>(&row.b)};
      float out = 5;
      auto* out_bytes = reinterpret_cast<std::byte*>(&out);
      reduce(DType::kFloat32, ReduceOp::kMin, inputs, out_bytes, 1, {});
      CHECK(same_bits(out, row.min));
      reduce(DType::kFloat32, ReduceOp::kMax, inputs, out_bytes, 1, {});
      CHECK(same_bits(out, row.max));
    }
  });
}

TEST_CASE("inputs are combined from left to right", "[kernels]") {
  // (2^24 + 1) + 1 stays 2^24 in f32; 1 + 1 + 2^24 is 2^24 + 2.
  const float big = 0x1p24f;
  const float one = 1;
  const auto sum = [](const float* a, const float* b, const float* c) {
    const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(a),
                                 reinterpret_cast<const std::byte*>(b),
                                 reinterpret_cast<const std::byte*>(c)};
    float out = 0;
    reduce(DType::kFloat32, ReduceOp::kSum, inputs, reinterpret_cast<std::byte*>(&out), 1, {});
    return out;
  };
  reference::with_each_target([&](const std::string&) {
    CHECK(sum(&big, &one, &one) == 0x1p24f);
    CHECK(sum(&one, &one, &big) == 0x1p24f + 2);
  });
}

TEST_CASE("unsigned numbers are compared and averaged without a sign", "[kernels]") {
  const uint64_t big = ~uint64_t{0} - 1;
  const uint64_t small = 1;
  const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(&big),
                               reinterpret_cast<const std::byte*>(&small)};
  const auto reduced = [&](ReduceOp op, const Finish& finish = {}) {
    uint64_t out = 0;
    reduce(DType::kUInt64, op, inputs, reinterpret_cast<std::byte*>(&out), 1, finish);
    return out;
  };
  reference::with_each_target([&](const std::string& target) {
    INFO(target);
    CHECK(reduced(ReduceOp::kMin) == small);
    CHECK(reduced(ReduceOp::kMax) == big);
    CHECK(reduced(ReduceOp::kSum) == ~uint64_t{0});
    CHECK(reduced(ReduceOp::kAverage, {1.0, 3, false}) == ~uint64_t{0} / 3);
  });
}

TEST_CASE("complex numbers are multiplied, the factor is of both parts", "[kernels]") {
  const std::complex<double> a(1, 2), b(3, -1), c(0, 1);
  const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(&a),
                               reinterpret_cast<const std::byte*>(&b),
                               reinterpret_cast<const std::byte*>(&c)};
  std::complex<double> out;
  auto* out_bytes = reinterpret_cast<std::byte*>(&out);
  reduce(DType::kComplex128, ReduceOp::kProduct, inputs, out_bytes, 1, {0.5, 1, false});
  CHECK(out == std::complex<double>(-2.5, 2.5));
  reduce(DType::kComplex128, ReduceOp::kSum, inputs, out_bytes, 1, {0.5, 1, false});
  CHECK(out == std::complex<double>(2, 1));
}

TEST_CASE("one bool input is normalised, a copy of it is not", "[kernels]") {
  const std::byte in[] = {std::byte{0}, std::byte{1}, std::byte{2}, std::byte{255}};
  const std::byte* inputs[] = {in};
  const Bytes normal = {std::byte{0}, std::byte{1}, std::byte{1}, std::byte{1}};
  Bytes out(4);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
                            ReduceOp::kBitwiseAnd, ReduceOp::kBitwiseOr, ReduceOp::kBitwiseXor}) {
    reduce(DType::kBool, op, inputs, out.data(), 4, {});
    CHECK(out == normal);
  }
  scaled_copy(DType::kBool, in, out.data(), 4, 1.0);
  CHECK(out == Bytes(std::begin(in), std::end(in)));
}

TEST_CASE("a streaming copy writes exactly its bytes, whatever the alignment", "[kernels]") {
  Bytes in(700);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 7 + 1);
  bool right = true;
  for (size_t bytes = 0; bytes <= 300; ++bytes) {
    for (size_t shift = 0; shift < 66; ++shift) {
      Bytes out(500, std::byte{0});
      Bytes wanted = out;
      copy_streaming(in.data() + shift / 3, out.data() + shift, bytes);
      if (bytes != 0) std::memcpy(wanted.data() + shift, in.data() + shift / 3, bytes);
      right &= out == wanted;
    }
  }
  CHECK(right);
}

}  // namespace rueda::kernels

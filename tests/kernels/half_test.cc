// Conversions between f32 and the 16-bit floats: every value, and the roundings in between.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

#include "collectives/kernels/kernels.h"
#include "tests/kernels/reference.h"

namespace rueda::kernels {
namespace {

std::vector<uint16_t> narrow(DType dtype, const std::vector<float>& values) {
  std::vector<uint16_t> out(values.size());
  convert_from_f32(dtype, values.data(), reinterpret_cast<std::byte*>(out.data()), values.size());
  return out;
}

std::vector<float> widen(DType dtype, const std::vector<uint16_t>& values) {
  std::vector<float> out(values.size());
  convert_to_f32(dtype, reinterpret_cast<const std::byte*>(values.data()), out.data(),
                 values.size());
  return out;
}

uint16_t encode(DType dtype, float value) {
  return dtype == DType::kFloat16 ? reference::encode_f16(value) : reference::encode_bf16(value);
}

double decode(DType dtype, uint16_t bits) {
  return dtype == DType::kFloat16 ? reference::decode_f16(bits) : reference::decode_bf16(bits);
}

// "" or the first difference: Catch would print all the elements.
template <typename T, typename U>
std::string first_difference(const std::vector<T>& got, const std::vector<T>& expected,
                             const std::vector<U>& inputs) {
  if (got.size() != expected.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    std::ostringstream text;
    text << "input " << inputs[i] << " (number " << i << ") gave " << std::hex << got[i]
         << " instead of " << expected[i];
    return text.str();
  }
  return "";
}

// Every 16-bit pattern, in order.
std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), uint16_t{0});
  return all;
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

}  // namespace

TEST_CASE("every 16-bit float widens to exactly its value, the same bits on every target",
          "[kernels]") {
  const DType dtype = GENERATE(DType::kFloat16, DType::kBFloat16);
  const auto all = all_patterns();
  std::vector<uint32_t> first_target;
  reference::with_each_target([&](const std::string& target) {
    INFO(name_of(dtype) << ' ' << target);
    const auto wide = widen(dtype, all);
    size_t wrong = 0;
    for (const uint16_t bits : all) {
      const double expected = decode(dtype, bits);
      const bool right =
          std::isnan(expected)
              ? std::isnan(wide[bits])
              : expected == wide[bits] && std::signbit(expected) == std::signbit(wide[bits]);
      wrong += right ? 0 : 1;
    }
    CHECK(wrong == 0);
    if (first_target.empty()) first_target = bits_of(wide);
    CHECK(first_difference(bits_of(wide), first_target, all) == "");
  });
}

TEST_CASE("every 16-bit float but NaN survives the way to f32 and back", "[kernels]") {
  const DType dtype = GENERATE(DType::kFloat16, DType::kBFloat16);
  const uint16_t canonical = dtype == DType::kFloat16 ? 0x7e00 : 0x7fc0;
  const auto all = all_patterns();
  reference::with_each_target([&](const std::string& target) {
    INFO(name_of(dtype) << ' ' << target);
    const auto back = narrow(dtype, widen(dtype, all));
    size_t wrong = 0;
    for (const uint16_t bits : all) {
      wrong += back[bits] == (std::isnan(decode(dtype, bits)) ? canonical : bits) ? 0 : 1;
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("narrowing rounds to nearest even at, just below and just above every midpoint",
          "[kernels]") {
  const DType dtype = GENERATE(DType::kFloat16, DType::kBFloat16);
  const uint16_t infinity = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
  std::vector<float> values;
  for (uint16_t bits = 0; bits < infinity; ++bits) {
    const double low = decode(dtype, bits);
    // Beyond the largest finite value the next step would be this one; there infinity begins.
    const double high =
        bits + 1 == infinity ? 2 * low - decode(dtype, bits - 1) : decode(dtype, bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    REQUIRE(static_cast<double>(middle) == (low + high) / 2);
    for (const float v : {std::nextafter(middle, 0.0f), middle,
                          std::nextafter(middle, std::numeric_limits<float>::infinity())}) {
      values.push_back(v);
      values.push_back(-v);
    }
  }
  std::vector<uint16_t> expected;
  for (const float v : values) expected.push_back(encode(dtype, v));
  reference::with_each_target([&](const std::string& target) {
    INFO(name_of(dtype) << ' ' << target);
    CHECK(first_difference(narrow(dtype, values), expected, values) == "");
  });
}

TEST_CASE("narrowing any f32 pattern gives the reference's bits", "[kernels]") {
  const DType dtype = GENERATE(DType::kFloat16, DType::kBFloat16);
  std::vector<float> values;
  std::vector<uint16_t> expected;
  std::mt19937_64 random(3);
  for (int i = 0; i < 200001; ++i) {
    // Half of them with exponents where f16 has values.
    auto bits = static_cast<uint32_t>(random());
    if (i % 2 == 0) bits = (bits & 0x87ffffffu) + 0x32000000u;
    values.push_back(std::bit_cast<float>(bits));
    expected.push_back(encode(dtype, values.back()));
  }
  reference::with_each_target([&](const std::string& target) {
    INFO(name_of(dtype) << ' ' << target);
    CHECK(first_difference(narrow(dtype, values), expected, values) == "");
  });
}

TEST_CASE("known values of the 16-bit floats", "[kernels]") {
  struct Row {
    float value;
    uint16_t f16;
    uint16_t bf16;
  };
  const Row rows[] = {
      {1.0f, 0x3c00, 0x3f80},
      {-2.0f, 0xc000, 0xc000},
      {65504.0f, 0x7bff, 0x4780},
      {65519.996f, 0x7bff, 0x4780},
      {65520.0f, 0x7c00, 0x4780},
      {0x1p-24f, 0x0001, 0x3380},
      {0x1p-25f, 0x0000, 0x3300},
      {0x1.000002p-25f, 0x0001, 0x3300},
      {0x1p-133f, 0x0000, 0x0001},    // bf16's smallest denormal
      {1.00390625f, 0x3c04, 0x3f80},  // 1 + 2^-8: bf16's tie, down to even
      {1.01171875f, 0x3c0c, 0x3f82},  // 1 + 3 * 2^-8: bf16's tie, up to even
      {std::numeric_limits<float>::max(), 0x7c00, 0x7f80},
      {-std::numeric_limits<float>::infinity(), 0xfc00, 0xff80},
      {std::bit_cast<float>(0xff800001u), 0x7e00, 0x7fc0},  // a signalling NaN
  };
  reference::with_each_target([&](const std::string& target) {
    INFO(target);
    for (const Row& row : rows) {
      CHECK(narrow(DType::kFloat16, {row.value})[0] == row.f16);
      CHECK(narrow(DType::kBFloat16, {row.value})[0] == row.bf16);
    }
  });
}

TEST_CASE("conversions of short and unaligned arrays stay inside them", "[kernels]") {
  const DType dtype = GENERATE(DType::kFloat16, DType::kBFloat16);
  reference::with_each_target([&](const std::string& target) {
    for (size_t count = 0; count < 40; ++count) {
      INFO(name_of(dtype) << ' ' << target << ' ' << count);
      std::vector<float> values(count + 2, -1.0f);
      for (size_t i = 0; i < count; ++i) values[i + 1] = 1.0f + static_cast<float>(i);
      std::vector<std::byte> small(2 * count + 2, std::byte{0xa5});
      convert_from_f32(dtype, values.data() + 1, small.data() + 1, count);
      CHECK(small.front() == std::byte{0xa5});
      CHECK(small.back() == std::byte{0xa5});
      std::vector<float> back(count + 2, -1.0f);
      convert_to_f32(dtype, small.data() + 1, back.data() + 1, count);
      CHECK(back == values);
    }
  });
}

}  // namespace rueda::kernels

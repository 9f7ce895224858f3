// Conversions of the 16-bit floats: every bit pattern there and back, and the roundings between
// them.
#include "rueda/half.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace {

// Checks T against its own definition: among finite neighbours a < b, floats up to the middle give
// a, above it b, and the middle gives the one whose last bit is 0.
template <typename T>
void check_every_pattern(std::uint32_t first_infinite) {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < first_infinite; ++bits) {
    T low, high;
    low.bits = static_cast<std::uint16_t>(bits);
    high.bits = static_cast<std::uint16_t>(bits + 1);
    T negative = low;
    negative.bits |= 0x8000u;
    const float a = static_cast<float>(low);
    wrong += T(a) == low ? 0 : 1;
    wrong += T(-a) == negative ? 0 : 1;
    if (bits + 1 == first_infinite) continue;
    const float b = static_cast<float>(high);
    const double middle = (static_cast<double>(a) + static_cast<double>(b)) / 2;
    const float m = static_cast<float>(middle);  // exact: both formats have bits to spare
    wrong += T(m) == ((bits & 1u) == 0 ? low : high) ? 0 : 1;
    wrong += T(std::nextafter(m, -INFINITY)) == low ? 0 : 1;
    wrong += T(std::nextafter(m, INFINITY)) == high ? 0 : 1;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("every Float16 survives the way through float, and floats between round to even",
          "[half]") {
  check_every_pattern<rueda::Float16>(0x7c00);
}

TEST_CASE("every BFloat16 survives the way through float, and floats between round to even",
          "[half]") {
  // Below the smallest normal float the middle of two neighbours is still a (subnormal) float.
  check_every_pattern<rueda::BFloat16>(0x7f80);
}

TEST_CASE("floats beyond the largest 16-bit value become infinity, NaN stays NaN", "[half]") {
  CHECK(rueda::Float16(65519.0f).bits == 0x7bff);
  CHECK(rueda::Float16(65520.0f).bits == 0x7c00);
  CHECK(rueda::Float16(-1e30f).bits == 0xfc00);
  CHECK(rueda::BFloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(rueda::Float16(INFINITY).bits == 0x7c00);
  CHECK(rueda::BFloat16(-INFINITY).bits == 0xff80);
  CHECK(std::isnan(static_cast<float>(rueda::Float16(NAN))));
  CHECK(std::isnan(static_cast<float>(rueda::BFloat16(NAN))));
  CHECK(std::isinf(static_cast<float>(rueda::Float16(INFINITY))));
}

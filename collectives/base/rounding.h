// Rounding of sizes and offsets.
#pragma once

#include <concepts>
#include <type_traits>

namespace rueda {

// The least multiple of unit that is not below value. value >= 0, unit > 0, any unit of measure.
template <std::integral Integer>
constexpr Integer round_up(Integer value, std::type_identity_t<Integer> unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace rueda

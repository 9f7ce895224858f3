// Whole numbers as little-endian bytes, whatever the machine's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace rueda::rendezvous {

template <typename Integer>
void store_little(Integer value, uint8_t* out) {
  auto bits = static_cast<std::make_unsigned_t<Integer>>(value);
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    out[i] = static_cast<uint8_t>(static_cast<uint64_t>(bits) >> (8 * i));
  }
}

template <typename Integer>
Integer load_little(const uint8_t* in) {
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) bits |= static_cast<uint64_t>(in[i]) << (8 * i);
  return static_cast<Integer>(bits);
}

}  // namespace rueda::rendezvous

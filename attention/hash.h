// FNV-1a: what ranks compare to know that they mean the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rueda::attention {

struct Fnv {
  uint64_t value = 14695981039346656037ull;
  void bytes(const void* data, size_t count) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < count; ++i) value = (value ^ at[i]) * 1099511628211ull;
  }
  void number(int64_t x) { bytes(&x, sizeof x); }
  template <typename T>
  void list(const std::vector<T>& x) {
    number(static_cast<int64_t>(x.size()));
    if (!x.empty()) bytes(x.data(), x.size() * sizeof(T));
  }
};

}  // namespace rueda::attention

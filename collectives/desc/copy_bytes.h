// copy_bytes: moving a run of bytes that need no arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rueda {

// Nothing may have no address; both may be the same, or overlap.
inline void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, static_cast<size_t>(bytes));
}

}  // namespace rueda

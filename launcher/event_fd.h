// An eventfd that one thread rings and another clears. Non-blocking; neither call can fail in a way
// that matters: a full one is readable already, an empty one is clear.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace rueda::launcher {

inline void ring(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof(one));
}

inline void clear(int fd) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(fd, &count, sizeof(count));
}

}  // namespace rueda::launcher

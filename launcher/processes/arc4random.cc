// gRPC uses std::random_device. libstdc++'s, linked statically, asks the C library for arc4random,
// which glibc has since 2.36 only: this one in its place lets ruedarun start where glibc is older.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" uint32_t arc4random() {
  uint32_t random = 0;
  // Four bytes come at once or not at all, and at all since Linux 3.17.
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) std::abort();
  return random;
}

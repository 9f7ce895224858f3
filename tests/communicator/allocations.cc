// A file of its own: where new and delete are seen together with their callers, compilers take the
// pair for a mismatch.
#include "tests/communicator/allocations.h"

#include <cstdlib>
#include <new>

namespace {
thread_local int64_t allocations = 0;
}

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// All of new's forms that end in the plain delete below.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace rueda::testing {

int64_t allocations_of_this_thread() { return allocations; }

}  // namespace rueda::testing

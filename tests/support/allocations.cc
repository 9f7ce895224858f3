// Takes malloc's place in front of glibc's own; where a sanitizer has done so already, only new's.
#include "tests/support/allocations.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <sstream>

namespace {

thread_local int64_t allocations = 0;
std::atomic<int64_t> all{0};

struct Stack {
  std::array<void*, 32> frames;
  std::atomic<int> depth{0};
};
std::array<Stack, 8> stacks;
std::atomic<size_t> traced{stacks.size()};  // as many as there are: no tracing

void count() {
  ++allocations;
  all.fetch_add(1, std::memory_order_relaxed);
  if (traced.load(std::memory_order_relaxed) >= stacks.size()) return;
  const size_t mine = traced.fetch_add(1, std::memory_order_relaxed);
  if (mine >= stacks.size()) return;
  Stack& stack = stacks[mine];
  stack.depth = backtrace(stack.frames.data(), static_cast<int>(stack.frames.size()));
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

void* operator new(size_t bytes) {
  count();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// All of new's forms that end in the plain delete below.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  count();
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

#else

extern "C" {

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  count();
  return __libc_malloc(bytes);
}
void* calloc(size_t number, size_t bytes) {
  count();
  return __libc_calloc(number, bytes);
}
void* realloc(void* memory, size_t bytes) {
  count();
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  count();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  count();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"

#endif

namespace rueda::testing {

int64_t allocations_of_this_thread() { return allocations; }
int64_t allocations_of_all_threads() { return all.load(std::memory_order_relaxed); }

void trace_allocations() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // the first call ever loads a library, and allocates
  for (Stack& stack : stacks) stack.depth = 0;
  traced = 0;
}

std::string traced_allocations() {
  const size_t count = std::min(traced.exchange(stacks.size()), stacks.size());
  std::ostringstream text;
  for (size_t i = 0; i < count; ++i) {
    const int depth = stacks[i].depth;
    for (int f = 0; f < depth; ++f) {
      const char* const address =
          static_cast<const char*>(stacks[i].frames[static_cast<size_t>(f)]);
      Dl_info file{};
      if (dladdr(address, &file) == 0) continue;
      text << (f == 0 ? "- " : "  ") << file.dli_fname << "+0x" << std::hex
           << address - static_cast<const char*>(file.dli_fbase);
      if (file.dli_sname != nullptr) text << "(" << file.dli_sname << ")";
      text << "\n";
    }
  }
  return text.str();
}

}  // namespace rueda::testing

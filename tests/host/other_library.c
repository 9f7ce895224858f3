/* A library that allocates, as PyTorch's does, and knows nothing of who calls. */
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void* other_allocate(size_t bytes) {
  void* memory = NULL;
  return posix_memalign(&memory, 64, bytes) == 0 ? memory : NULL;
}

EXPORTED void other_free(void* memory) { free(memory); }

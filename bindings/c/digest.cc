// Digests of memory, by xxHash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bindings/c/context.h"
#include "bindings/c/digest_parts.h"

extern "C" void rueda_digest(const void* const* parts, const size_t* bytes, size_t count,
                             uint8_t* digest) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return rueda::c::digest_with_avx2(parts, bytes, count, digest);
#endif
  rueda::c::digest_of_parts(parts, bytes, count, digest);
}

// Digests of memory on processors with AVX2. All here is compiled for them: what it includes of
// others' comes before that.
#if defined(__x86_64__)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

#include "bindings/c/digest_parts.h"

namespace rueda::c {

void digest_with_avx2(const void* const* parts, const size_t* bytes, size_t count,
                      uint8_t* digest) {
  digest_of_parts(parts, bytes, count, digest);
}

bool read_digest_with_avx2(pid_t pid, const uint64_t* from, void* const* parts, const size_t* bytes,
                           size_t count, uint8_t* digest) {
  return ChunkReader(pid, from, parts, bytes, count).read_all(digest);
}

}  // namespace rueda::c

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

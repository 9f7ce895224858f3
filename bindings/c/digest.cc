// Digests of memory, by xxHash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bindings/c/context.h"

extern "C" void rueda_digest(const void* const* parts, const size_t* bytes, size_t count,
                             uint8_t* digest) {
  XXH128_hash_t hash;
  if (count == 1) {
    hash = XXH3_128bits(parts[0], bytes[0]);
  } else {
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    for (size_t i = 0; i < count; ++i) {
      if (bytes[i] > 0) XXH3_128bits_update(&state, parts[i], bytes[i]);
    }
    hash = XXH3_128bits_digest(&state);
  }
  XXH128_canonicalFromHash(reinterpret_cast<XXH128_canonical_t*>(digest), hash);
}

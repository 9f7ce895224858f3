// The digest of several ranges, for whoever includes it behind xxhash.h: once for any processor,
// once for those with AVX2, where xxHash is more than twice as fast.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rueda::c {

// As rueda_digest(). Only where the processor has AVX2.
void digest_with_avx2(const void* const* parts, const size_t* bytes, size_t count, uint8_t* digest);

namespace {

inline void digest_of_parts(const void* const* parts, const size_t* bytes, size_t count,
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

}  // namespace
}  // namespace rueda::c

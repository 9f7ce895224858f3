// Digests of memory, by xxHash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bindings/c/context.h"
#include "bindings/c/digest_parts.h"

#if defined(__x86_64__)
namespace {

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

}  // namespace
#endif

extern "C" void rueda_digest(const void* const* parts, const size_t* bytes, size_t count,
                             uint8_t* digest) {
#if defined(__x86_64__)
  if (has_avx2()) return rueda::c::digest_with_avx2(parts, bytes, count, digest);
#endif
  rueda::c::digest_of_parts(parts, bytes, count, digest);
}

extern "C" int32_t rueda_read_digest(int64_t pid, const uint64_t* from, void* const* parts,
                                     const size_t* bytes, size_t count, uint8_t* digest) {
  const auto process = static_cast<pid_t>(pid);
#if defined(__x86_64__)
  if (has_avx2())
    return rueda::c::read_digest_with_avx2(process, from, parts, bytes, count, digest) ? 1 : 0;
#endif
  rueda::c::ChunkReader reader(process, from, parts, bytes, count);
  return reader.read_all(digest) ? 1 : 0;
}

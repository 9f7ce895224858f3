// The digest of several ranges, for whoever includes it behind xxhash.h: once for any processor,
// once for those with AVX2, where xxHash is more than twice as fast.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace rueda::c {

// As rueda_digest() and rueda_read_digest(). Only where the processor has AVX2.
void digest_with_avx2(const void* const* parts, const size_t* bytes, size_t count, uint8_t* digest);
bool read_digest_with_avx2(pid_t pid, const uint64_t* from, void* const* parts, const size_t* bytes,
                           size_t count, uint8_t* digest);

namespace {

inline void write_digest(XXH128_hash_t hash, uint8_t* digest) {
  XXH128_canonicalFromHash(reinterpret_cast<XXH128_canonical_t*>(digest), hash);
}

inline void digest_of_parts(const void* const* parts, const size_t* bytes, size_t count,
                            uint8_t* digest) {
  if (count == 1) return write_digest(XXH3_128bits(parts[0], bytes[0]), digest);
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] > 0) XXH3_128bits_update(&state, parts[i], bytes[i]);
  }
  write_digest(XXH3_128bits_digest(&state), digest);
}

// What is read in one call: small enough for a core's cache, where it is digested.
constexpr size_t kChunk = size_t{128} << 10;
constexpr size_t kMostRanges = 64;

class ChunkReader {
 public:
  ChunkReader(pid_t pid, const uint64_t* from, void* const* parts, const size_t* bytes,
              size_t count)
      : pid_(pid), from_(from), parts_(parts), bytes_(bytes), count_(count) {}

  bool read_all(uint8_t* digest) {
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    while (collect()) {
      if (!read()) return false;
      for (size_t i = 0; i < ranges_; ++i)
        XXH3_128bits_update(&state, here_[i].iov_base, here_[i].iov_len);
    }
    write_digest(XXH3_128bits_digest(&state), digest);
    return true;
  }

 private:
  // The ranges of the next chunk. False: there is none.
  bool collect() {
    ranges_ = size_ = 0;
    while (part_ < count_ && ranges_ < kMostRanges && size_ < kChunk) {
      const size_t size = std::min(bytes_[part_] - at_, kChunk - size_);
      if (size > 0) {
        here_[ranges_] = {static_cast<uint8_t*>(parts_[part_]) + at_, size};
        // An address of the other process, never followed here.
        void* there = reinterpret_cast<void*>(from_[part_] + at_);  // NOLINT(performance-no-int-to-ptr)
        there_[ranges_++] = {there, size};
      }
      size_ += size;
      at_ += size;
      if (at_ == bytes_[part_]) ++part_, at_ = 0;
    }
    return ranges_ > 0;
  }

  bool read() {
    ssize_t got = 0;
    do {
      got = process_vm_readv(pid_, here_.data(), ranges_, there_.data(), ranges_, 0);
    } while (got < 0 && errno == EINTR);
    return got == static_cast<ssize_t>(size_);
  }

  const pid_t pid_;
  const uint64_t* const from_;
  void* const* const parts_;
  const size_t* const bytes_;
  const size_t count_;
  size_t part_ = 0, at_ = 0;  // what is next
  std::array<iovec, kMostRanges> here_, there_;
  size_t ranges_ = 0, size_ = 0;  // of this chunk
};

}  // namespace
}  // namespace rueda::c

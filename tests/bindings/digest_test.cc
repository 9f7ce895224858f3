// The digest has the same bytes on every processor.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bindings/c/digest_parts.h"

#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace {

using Digest = std::array<uint8_t, 16>;

struct Ranges {
  std::vector<const void*> parts;
  std::vector<size_t> bytes;
};

// The whole, cut at random into so many ranges.
Ranges cut(const std::vector<uint8_t>& whole, int count, std::mt19937* chance) {
  Ranges ranges;
  size_t at = 0;
  for (int i = 1; i <= count; ++i) {
    const size_t left = whole.size() - at;
    const size_t size = i == count ? left : (*chance)() % (left + 1);
    ranges.parts.push_back(whole.data() + at);
    ranges.bytes.push_back(size);
    at += size;
  }
  return ranges;
}

}  // namespace

TEST_CASE("with AVX2 and without it the digests are equal", "[digest]") {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") == 0) {
    WARN("this processor has no AVX2");
    return;
  }
  std::mt19937 chance(1);
  std::vector<uint8_t> whole;
  for (size_t size = 0; size < 3'000'000; size = size < 600 ? size + 1 : size * 3 + 1) {
    while (whole.size() < size) whole.push_back(static_cast<uint8_t>(chance()));
    whole.resize(size);
    const void* const all = whole.data();
    Digest expected;
    rueda::c::digest_of_parts(&all, &size, 1, expected.data());
    for (const int count : {1, 2, 5}) {
      const Ranges ranges = cut(whole, count, &chance);
      Digest portable, fast;
      rueda::c::digest_of_parts(ranges.parts.data(), ranges.bytes.data(), ranges.parts.size(),
                                portable.data());
      rueda::c::digest_with_avx2(ranges.parts.data(), ranges.bytes.data(), ranges.parts.size(),
                                 fast.data());
      INFO(size << " bytes in " << count << " ranges");
      REQUIRE(portable == expected);
      REQUIRE(fast == expected);
    }
  }
#endif
}

TEST_CASE("what is read from a process has the digest of what has come", "[digest]") {
  std::mt19937 chance(2);
  std::vector<uint8_t> whole(700'000);
  for (uint8_t& each : whole) each = static_cast<uint8_t>(chance());
  Digest expected;
  const void* const all = whole.data();
  const size_t size = whole.size();
  rueda::c::digest_of_parts(&all, &size, 1, expected.data());
  for (const int count : {1, 2, 7, 500}) {
    const Ranges there = cut(whole, count, &chance);
    for (const bool fast : {false, true}) {
#if defined(__x86_64__)
      if (fast && __builtin_cpu_supports("avx2") == 0) continue;
#else
      if (fast) continue;
#endif
      std::vector<uint8_t> came(size);
      std::vector<uint64_t> from;
      std::vector<void*> parts;
      for (const void* part : there.parts) {
        from.push_back(reinterpret_cast<uintptr_t>(part));
        parts.push_back(came.data() + (static_cast<const uint8_t*>(part) - whole.data()));
      }
      const auto read = [&](pid_t pid, Digest* digest) {
#if defined(__x86_64__)
        if (fast)
          return rueda::c::read_digest_with_avx2(pid, from.data(), parts.data(),
                                                 there.bytes.data(), from.size(), digest->data());
#endif
        return rueda::c::ChunkReader(pid, from.data(), parts.data(), there.bytes.data(),
                                     from.size())
            .read_all(digest->data());
      };
      INFO(count << " ranges, " << (fast ? "AVX2" : "any processor"));
      Digest digest;
      REQUIRE(read(getpid(), &digest));
      CHECK(came == whole);
      CHECK(digest == expected);
      CHECK_FALSE(read(-1, &digest));
      from.back() = 1;  // where nobody has memory
      CHECK(read(getpid(), &digest) == (there.bytes.back() == 0));
    }
  }
}

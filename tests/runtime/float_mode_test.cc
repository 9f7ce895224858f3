// Results do not depend on the floating-point mode of whatever thread happens to compute them.
#include <catch2/catch.hpp>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstdint>
#include <limits>

#include "collectives/base/float_mode.h"
#include "tests/runtime/persistent_calls.h"

namespace rueda::testing {
namespace {

// As torch.set_flush_denormal(True): subnormal numbers are taken for and turned into zeros.
void flush_subnormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
  uint64_t mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  asm volatile("msr fpcr, %0" : : "r"(mode | uint64_t{1} << 24));
#endif
}

bool flushes() {
  const volatile float least = std::numeric_limits<float>::min();
  return least / 2 == 0;
}

TEST_CASE("the default mode is in force while it lives, and the thread's own is back after it") {
  on_ranks(1, [](Rank) {
    flush_subnormals();
    const bool before = flushes();
    {
      const DefaultFloatMode mode;
      CHECK(!flushes());
    }
    CHECK(flushes() == before);
    return 0;
  });
}

// Each way to start and to wait is another thread's, or the same, that computes.
std::string subnormal_sums(Rank rank, engine::Runtime& r) {
  if (rank == 0) flush_subnormals();
  const float part = std::numeric_limits<float>::denorm_min() * 1000;
  const size_t count = 1 + 37 * 31;
  const auto wrong = [&](const Floats& data) {
    uint32_t bits = 0;
    std::memcpy(&bits, &data[count - 1], sizeof(bits));
    return bits != 2000;
  };
  Sum sum(r, "persistent", count);
  for (int round = 0; round < 60; ++round) {
    must(sum.run(part));
    if (wrong(sum.data)) return "run, round " + std::to_string(round);
    sum.start(part);
    must(end_of(sum.request));
    if (wrong(sum.data)) return "start and wait, round " + std::to_string(round);
    Floats data(count, part);
    must(call(r, sum_of("once", &data)));
    if (wrong(data)) return "once, round " + std::to_string(round);
    std::fill(data.begin(), data.end(), part);
    RequestPtr request;
    must(r.run(sum_of("", &data), std::chrono::nanoseconds(-1), &request));
    if (wrong(data)) return "unnamed, round " + std::to_string(round);
  }
  return "";
}

TEST_CASE("sums of subnormal numbers are the same bits whoever flushes them to zero") {
  const Kind kind = GENERATE(Kind::kShm, Kind::kTcp, Kind::kPairs);
  INFO(name_of(kind));
  RuntimeWorld world(kind, 2);
  for (const std::string& wrong : world.run(subnormal_sums)) CHECK(wrong == "");
}

}  // namespace
}  // namespace rueda::testing

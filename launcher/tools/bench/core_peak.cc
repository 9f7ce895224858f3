#include "launcher/tools/bench/core_peak.h"

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rueda::bench {
namespace {

// 24 sums that wait for nobody: more than latency times units of any core there is.
constexpr int kSums = 24;

// Vector sums of the portable loop; GCC and Clang spread it over what the target has.
using Four __attribute__((vector_size(16))) = float;

float portable(int64_t rounds) {
  Four sums[kSums] = {};
  const Four a = {1.0001f, 1.0001f, 1.0001f, 1.0001f}, b = {1e-6f, 1e-6f, 1e-6f, 1e-6f};
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (Four& sum : sums) sum = sum * a + b;
  }
  float result = 0;
  for (const Four& sum : sums) result += sum[0];
  return result;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float avx512(int64_t rounds) {
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const __m512 a = _mm512_set1_ps(1.0001f), b = _mm512_set1_ps(1e-6f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  float result = 0;
  for (const __m512& sum : sums) result += _mm512_cvtss_f32(sum);
  return result;
}

// Half as many: there are sixteen registers.
__attribute__((target("avx2,fma"))) float avx2(int64_t rounds) {
  __m256 sums[kSums / 2];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const __m256 a = _mm256_set1_ps(1.0001f), b = _mm256_set1_ps(1e-6f);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  float result = 0;
  for (const __m256& sum : sums) result += _mm256_cvtss_f32(sum);
  return result;
}
#endif

double best_rate(float (*loop)(int64_t), double operations) {
  volatile float sink = 0;
  int64_t rounds = 1 << 12;
  double best = 0, spent = 0;
  while (spent < 0.04) {
    const double begin = cpu_seconds();
    sink = sink + loop(rounds);
    const double took = cpu_seconds() - begin;
    spent += took;
    if (took < 0.002) {
      rounds *= 2;
    } else {
      best = std::max(best, operations * static_cast<double>(rounds) / took);
    }
  }
  return best * 1e-9;
}

}  // namespace

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

CorePeak core_peak() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {best_rate(avx512, 2.0 * 16 * kSums), "avx512"};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {best_rate(avx2, 2.0 * 8 * kSums / 2), "avx2"};
#endif
  return {best_rate(portable, 2.0 * 4 * kSums), "portable"};
}

}  // namespace rueda::bench

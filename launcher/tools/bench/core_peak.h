// What one core of this machine can do at most, measured now: the yardstick of a kernel.
#pragma once

namespace rueda::bench {

struct CorePeak {
  double gflops = 0;  // float32 multiply-adds, two operations each, per second of CPU time
  const char* instructions = "";  // "avx512", "avx2", "portable"
};

// Takes about 40 ms of CPU time.
CorePeak core_peak();

// CPU time of this process so far, all threads, in seconds.
double cpu_seconds();

}  // namespace rueda::bench

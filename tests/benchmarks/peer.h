// The main program of a peer: `peer CASE...` on every rank prints one line "ROW {json}" per case on
// rank 0. RUEDA_BENCH_MEETING names the fresh file on which the ranks meet, RUEDA_BENCH_SECONDS and
// RUEDA_BENCH_ITERATIONS bound the effort.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "launcher/tools/bench/measure.h"

namespace rueda::bench {

inline int run_peer(Subject* subject, int rank, int size, int argc, char** argv) {
  const auto fail = [](const Status& status) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  };
  const char* path = std::getenv("RUEDA_BENCH_MEETING");
  if (path == nullptr) return fail(invalid_argument("RUEDA_BENCH_MEETING is not set"));
  auto meeting = Meeting::open(path, rank, size);
  if (!meeting.ok()) return fail(meeting.status());
  Effort effort;
  if (const char* seconds = std::getenv("RUEDA_BENCH_SECONDS")) effort.seconds = std::atof(seconds);
  if (const char* count = std::getenv("RUEDA_BENCH_ITERATIONS"))
    effort.iterations = std::atoi(count);
  pin_to_core(rank);
  for (int i = 1; i < argc; ++i) {
    const auto c = parse_case(argv[i]);
    if (!c.ok()) return fail(c.status());
    const auto row = measure(subject, &meeting.value(), c.value(), effort);
    if (!row.ok()) return fail(row.status());
    if (rank == 0) {
      std::printf("ROW %s\n", json_of(row.value()).c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace rueda::bench

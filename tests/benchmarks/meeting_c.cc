// The ranks' meeting for Python programs (meeting.py): the same barrier, machine check and binding
// to cores as in C++, so that their rows compare.
#include <cstdio>

#include "launcher/tools/bench/meeting.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using rueda::bench::Meeting;

// NULL when the file cannot be opened; the reason is on stderr.
EXPORT Meeting* bench_meeting_open(const char* path, int rank, int size) {
  auto opened = Meeting::open(path, rank, size);
  if (opened.ok()) return new Meeting(std::move(opened).value());
  std::fprintf(stderr, "%s\n", opened.status().message().c_str());
  return nullptr;
}
EXPORT void bench_meeting_barrier(Meeting* meeting) { meeting->barrier(); }
EXPORT int bench_meeting_agree(Meeting* meeting, int mine) { return meeting->agree(mine != 0); }
EXPORT void bench_meeting_put(Meeting* meeting, int index, double value) {
  meeting->put_sample(index, value);
}
EXPORT double bench_meeting_slowest(Meeting* meeting, int index) { return meeting->slowest(index); }
EXPORT double bench_meeting_one_way_ns(Meeting* meeting) { return meeting->one_way_ns(); }
EXPORT void bench_pin_to_core(int rank) { rueda::bench::pin_to_core(rank); }

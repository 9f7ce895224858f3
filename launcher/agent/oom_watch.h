// Was a rank killed for want of memory? The kernel tells nobody who sent SIGKILL; but it counts its
// own kills, for each control group and for the host. A hint, not a proof.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/host/cgroup.h"

namespace rueda::launcher {

class OomWatch {
 public:
  // Counts from here on. read: where the kernel's files come from.
  explicit OomWatch(host::ReadFile read = host::read_small_file);
  // ", probably for want of memory: ..." after a SIGKILL for which the kernel's counters have risen
  // since the last time; else "".
  std::string hint(int wait_status);

 private:
  struct Counter {
    std::string path;   // of a file with lines "oom_kill N"
    std::string whose;  // "its control group's memory limit (512 MiB)"
    int64_t seen = 0;
  };
  host::ReadFile read_;
  std::vector<Counter> counters_;
};

}  // namespace rueda::launcher

// What a process takes of its host, and what all together do.
#pragma once

#include <cstdint>

namespace rueda::launcher {

struct ProcessUse {
  int64_t cpu_ns = 0;      // so far, of all its threads
  int64_t delayed_ns = 0;  // so far, its first thread: it could run, and had no core
  int64_t resident_bytes = 0, shared_memory_bytes = 0;
  int64_t host_cpu_ns = 0;  // so far, all processes of its host; 0: unknown
  bool operator==(const ProcessUse&) const = default;
};

}  // namespace rueda::launcher

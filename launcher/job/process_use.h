// What a process takes of its host.
#pragma once

#include <cstdint>

namespace rueda::launcher {

struct ProcessUse {
  int64_t cpu_ns = 0;      // so far, of all its threads
  int64_t delayed_ns = 0;  // so far, its first thread: it could run, and had no core
  int64_t resident_bytes = 0, shared_memory_bytes = 0;
  bool operator==(const ProcessUse&) const = default;
};

}  // namespace rueda::launcher

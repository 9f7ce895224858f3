// What a process has had to do with disks since it began, as the kernel tells any process of the
// same user: /proc/PID/stat and /proc/PID/io.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace rueda::engine {

struct DiskUse {
  // Nanoseconds that its first thread was blocked by disks. Always 0 where the kernel does not
  // count that: most do not unless sysctl kernel.task_delayacct is 1.
  int64_t blocked = 0;
  // Bytes that it has had read from disks or written to files on disks; 0 also where that is
  // hidden.
  int64_t bytes = 0;
};

// Of the files' texts. Pure. Empty: `stat` is none. ticks: in a second, sysconf(_SC_CLK_TCK).
std::optional<DiskUse> parse_disk_use(std::string_view stat, std::string_view io, int64_t ticks);
// Reads both files: some 20 us, without memory of the heap. Empty: there is no such process here.
// Any thread.
std::optional<DiskUse> disk_use(int pid);

}  // namespace rueda::engine

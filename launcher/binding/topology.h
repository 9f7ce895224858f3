// The hardware threads of this machine that we may use, and what they lie in.
//
// hwloc tells, where it is installed: its library is opened at run time, since a launcher that
// starts anywhere must not need it, and linking it in would pull in libudev. Else the kernel's /sys
// does.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::launcher {

struct HardwareThread {
  int cpu = 0;   // the kernel's number
  int core = 0;  // equal for threads of one core; unique in the machine
  int node = 0;  // NUMA node
};

struct Topology {
  std::vector<HardwareThread> threads;  // by (node, core, cpu); never empty
  bool of_this_machine = true;          // false: HWLOC_SYNTHETIC, a file of another machine
  std::string source;                   // "hwloc 2.9.0", or "/sys, because ..."
};

Topology read_topology();

// Affinity of the calling thread, ascending.
std::vector<int> own_cpus();

// From libhwloc; Unavailable says why not. `allowed`: own_cpus(), which others are left out by.
Result<Topology> read_hwloc(const std::vector<int>& allowed);

// From /sys. `read` gives a file's text, `exists` tells of a path: tests bring their own.
struct SysFiles {
  std::function<std::optional<std::string>(const std::string&)> read;
  std::function<bool(const std::string&)> exists;
};
SysFiles kernel_files();
Topology read_sys(const std::vector<int>& allowed, const SysFiles& files);

void sort_threads(Topology* topology);

}  // namespace rueda::launcher

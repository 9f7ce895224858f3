// `--bind`: which hardware threads each rank of a host may use, and how many threads of its own it
// should start. Pure.
//
//   none       any (default). Whoever shares the machine is not known here, and two jobs that are
//              each bound to its first cores would share these while the others idle.
//   core       ranks share the cores evenly, neighbours next to each other, within a NUMA node
//              where there are as many ranks as nodes
//   numa       ranks are spread over the NUMA nodes; each may use all cores of its own
//   0-3:4-7    the kernel's numbers, a list for each local rank
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/binding/topology.h"

namespace rueda::launcher {

struct Bind {
  enum class Kind { kNone, kCore, kNuma, kList };
  Kind kind = Kind::kNone;
  std::vector<std::vector<int>> lists;  // of kList, by local rank, ascending
};

// After --bind; empty is none.
Result<Bind> parse_bind(const std::string& text);

struct RankBinding {
  std::vector<int> cpus;  // ascending; empty: not bound
  int threads = 1;        // for OMP_NUM_THREADS: cores divided by those who share them
  // "cpus 0-3 (NUMA node 0), 2 threads"
  std::string text;
};

// One for each local rank. `core_limit`: of the cgroup, in cores; 0: none. InvalidArgument when
// there are fewer cores than ranks to bind, or a list names a cpu that we may not use.
Result<std::vector<RankBinding>> plan_binding(const Bind& bind, const Topology& topology,
                                              int local_size, double core_limit);

}  // namespace rueda::launcher

// What this machine offers to rueda, found out by trying: the table of `ruedarun --check-build`,
// and some of the facts of `rueda doctor` (tools/doctor).
//
// Runs python3 once (at most a few seconds) and opens libraries; call it from a process that ends
// soon. Never fails: what cannot be found out is a row that says why.
#pragma once

#include <string>
#include <vector>

namespace rueda::launcher {

struct Probe {
  bool found = false;
  std::string name;    // "TCP over IPv6"
  std::string detail;  // path and version, or the reason why not; may be empty
};

std::vector<Probe> probe_frameworks();
std::vector<Probe> probe_transports();
// CUDA, NCCL, MPI as the loader finds them: opened and asked for their version.
std::vector<Probe> probe_libraries();
Probe probe_mpi();

// "    [X] NumPy 1.24" lines under a title.
std::string format_probes(const std::string& title, const std::vector<Probe>& probes);
std::string check_build_text();

}  // namespace rueda::launcher

#include "launcher/binding/host_binding.h"

#include <set>

#include "collectives/base/number_text.h"
#include "collectives/host/cgroup.h"

namespace rueda::launcher {
namespace {

double core_limit() { return host::cgroup_core_limit(host::read_small_file).value_or(0); }

}  // namespace

Result<std::vector<RankBinding>> bind_here(const std::string& text, int local_size) {
  RUEDA_ASSIGN_OR_RETURN(const Bind bind, parse_bind(text));
  // hwloc takes tens of milliseconds; for a number of threads /sys will do.
  const Topology topology =
      bind.kind == Bind::Kind::kNone ? read_sys(own_cpus(), kernel_files()) : read_topology();
  if (!topology.of_this_machine) {
    return failed_precondition("--bind " + text +
                               ": hwloc was told to describe another machine; unset "
                               "HWLOC_SYNTHETIC and HWLOC_XMLFILE");
  }
  return plan_binding(bind, topology, local_size, core_limit());
}

Result<std::string> binding_text(const std::string& text, int local_size) {
  RUEDA_ASSIGN_OR_RETURN(const Bind bind, parse_bind(text));
  const Topology topology = read_topology();
  std::set<int> cores, nodes;
  for (const HardwareThread& thread : topology.threads) {
    cores.insert(thread.core);
    nodes.insert(thread.node);
  }
  std::string out = "binding         --bind " + (text.empty() ? "none" : text) + ": " +
                    counted(nodes.size(), "NUMA node") + ", " + counted(cores.size(), "core") +
                    ", " + counted(topology.threads.size(), "hardware thread") + " here (" +
                    topology.source + ")\n";
  if (local_size == 0) return out;
  RUEDA_ASSIGN_OR_RETURN(
      const std::vector<RankBinding> ranks,
      plan_binding(bind, topology, local_size, topology.of_this_machine ? core_limit() : 0));
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    out += "  local rank " + std::to_string(rank) + "  " + ranks[rank].text + "\n";
  return out;
}

}  // namespace rueda::launcher

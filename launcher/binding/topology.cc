#include "launcher/binding/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <tuple>
#include <utility>

#include "collectives/host/cgroup.h"

namespace rueda::launcher {
namespace {

constexpr int kMostNodes = 256;  // their numbers may have gaps

int number_in(const std::optional<std::string>& text, int otherwise) {
  int value = otherwise;
  if (text) std::from_chars(text->data(), text->data() + text->size(), value);
  return value;
}

}  // namespace

std::vector<int> own_cpus() {
  // The set grows until the kernel's mask fits.
  for (size_t count = 1024; count <= 1 << 20; count *= 2) {
    cpu_set_t* set = CPU_ALLOC(count);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(count);
    std::vector<int> cpus;
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (size_t cpu = 0; cpu < count; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(static_cast<int>(cpu));
      }
    }
    CPU_FREE(set);
    if (!cpus.empty()) return cpus;
  }
  return {0};
}

void sort_threads(Topology* topology) {
  std::sort(topology->threads.begin(), topology->threads.end(), [](const auto& a, const auto& b) {
    return std::tie(a.node, a.core, a.cpu) < std::tie(b.node, b.core, b.cpu);
  });
}

SysFiles kernel_files() {
  SysFiles files;
  files.read = host::read_small_file;
  files.exists = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  };
  return files;
}

Topology read_sys(const std::vector<int>& allowed, const SysFiles& files) {
  Topology topology;
  std::vector<int> nodes;
  for (int node = 0; node < kMostNodes; ++node) {
    if (files.exists("/sys/devices/system/node/node" + std::to_string(node))) nodes.push_back(node);
  }
  std::map<std::pair<int, int>, int> cores;  // (package, core of it): its first cpu, unique
  for (const int cpu : allowed) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/";
    const int package = number_in(files.read(folder + "topology/physical_package_id"), 0);
    const int core = number_in(files.read(folder + "topology/core_id"), cpu);
    const auto node = std::find_if(nodes.begin(), nodes.end(), [&](int each) {
      return files.exists(folder + "node" + std::to_string(each));
    });
    topology.threads.push_back({cpu, cores.try_emplace({package, core}, cpu).first->second,
                                node == nodes.end() ? 0 : *node});
  }
  sort_threads(&topology);
  return topology;
}

Topology read_topology() {
  const std::vector<int> allowed = own_cpus();
  auto found = read_hwloc(allowed);
  if (found.ok()) return std::move(found).value();
  Topology topology = read_sys(allowed, kernel_files());
  topology.source = "/sys, because " + found.status().message();
  return topology;
}

}  // namespace rueda::launcher

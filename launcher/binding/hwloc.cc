// read_hwloc where hwloc's header was there at build time; the library may still be absent.
#include <dlfcn.h>
#include <hwloc.h>

#include <algorithm>
#include <memory>

#include "launcher/binding/topology.h"

namespace rueda::launcher {
namespace {

constexpr const char* kLibrary = "libhwloc.so.15";  // of hwloc 2

// The few calls that are needed, under their own names.
struct Calls {
  void* library = nullptr;
  bool complete = true;

  template <typename Function>
  void find(Function** function, const char* name) {
    *function = reinterpret_cast<Function*>(dlsym(library, name));
    complete = complete && *function != nullptr;
  }

  decltype(hwloc_get_api_version)* get_api_version = nullptr;
  decltype(hwloc_topology_init)* init = nullptr;
  decltype(hwloc_topology_load)* load = nullptr;
  decltype(hwloc_topology_destroy)* destroy = nullptr;
  decltype(hwloc_topology_is_thissystem)* is_thissystem = nullptr;
  decltype(hwloc_get_type_depth)* type_depth = nullptr;
  decltype(hwloc_get_nbobjs_by_depth)* count_by_depth = nullptr;
  decltype(hwloc_get_obj_by_depth)* by_depth = nullptr;
  decltype(hwloc_bitmap_first)* bitmap_first = nullptr;
};

Result<Calls> open_library() {
  Calls calls;
  calls.library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (calls.library == nullptr) {
    const char* why = dlerror();
    return unavailable(why == nullptr ? kLibrary : why);
  }
  calls.find(&calls.get_api_version, "hwloc_get_api_version");
  calls.find(&calls.init, "hwloc_topology_init");
  calls.find(&calls.load, "hwloc_topology_load");
  calls.find(&calls.destroy, "hwloc_topology_destroy");
  calls.find(&calls.is_thissystem, "hwloc_topology_is_thissystem");
  calls.find(&calls.type_depth, "hwloc_get_type_depth");
  calls.find(&calls.count_by_depth, "hwloc_get_nbobjs_by_depth");
  calls.find(&calls.by_depth, "hwloc_get_obj_by_depth");
  calls.find(&calls.bitmap_first, "hwloc_bitmap_first");
  if (!calls.complete || calls.get_api_version() >> 16 != HWLOC_API_VERSION >> 16)
    return unavailable(std::string(kLibrary) + " is of another version than the header");
  return calls;
}

HardwareThread describe(const Calls& calls, const hwloc_obj* thread) {
  HardwareThread found;
  found.cpu = found.core = static_cast<int>(thread->os_index);
  for (const hwloc_obj* at = thread->parent; at != nullptr; at = at->parent) {
    if (at->type == HWLOC_OBJ_CORE) found.core = static_cast<int>(at->logical_index);
  }
  if (thread->nodeset != nullptr) found.node = std::max(0, calls.bitmap_first(thread->nodeset));
  return found;
}

}  // namespace

Result<Topology> read_hwloc(const std::vector<int>& allowed) {
  RUEDA_ASSIGN_OR_RETURN(const Calls calls, open_library());
  hwloc_topology_t made = nullptr;
  if (calls.init(&made) != 0) return unavailable("hwloc cannot begin");
  const std::unique_ptr<hwloc_topology, decltype(calls.destroy)> owner(made, calls.destroy);
  if (calls.load(made) != 0) return unavailable("hwloc cannot look at this machine");
  Topology topology;
  topology.of_this_machine = calls.is_thissystem(made) != 0;
  const int depth = calls.type_depth(made, HWLOC_OBJ_PU);
  for (unsigned i = 0; i < calls.count_by_depth(made, depth); ++i) {
    const HardwareThread thread = describe(calls, calls.by_depth(made, depth, i));
    const bool ours = std::binary_search(allowed.begin(), allowed.end(), thread.cpu);
    if (ours || !topology.of_this_machine) topology.threads.push_back(thread);
  }
  if (topology.threads.empty()) return unavailable("hwloc sees no core that we may use");
  sort_threads(&topology);
  const unsigned version = calls.get_api_version();
  topology.source = "hwloc, interface " + std::to_string(version >> 16) + "." +
                    std::to_string((version >> 8) & 0xff);
  if (!topology.of_this_machine) topology.source += ", of another machine";
  return topology;
}

}  // namespace rueda::launcher

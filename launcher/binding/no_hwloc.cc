// read_hwloc where hwloc's header was not there at build time.
#include "launcher/binding/topology.h"

namespace rueda::launcher {

Result<Topology> read_hwloc(const std::vector<int>&) {
  return unavailable("this ruedarun was built without hwloc's header (Debian: libhwloc-dev)");
}

}  // namespace rueda::launcher

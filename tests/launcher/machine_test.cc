// Which names mean this machine.
#include "launcher/hosts/machine.h"

#include <catch2/catch.hpp>
#include <sstream>

using namespace rueda::launcher;

TEST_CASE("a pod is known by the names that its cluster gives it", "[machine]") {
  std::istringstream hosts(
      "127.0.0.1\tlocalhost\n"
      "# Kubernetes-managed hosts file.\n"
      "10.0.3.7\tpi-launcher.pi.ns.svc.cluster.local\tpi-launcher  # pi-launcher.x\n"
      "10.0.3.8 pi-launcher2.pi pi-launcher-b.pi\n"
      "10.0.3.9 elsewhere pi-launcher.lab\n");
  CHECK(longer_names(hosts, "pi-launcher") ==
        std::vector<std::string>{"pi-launcher.pi.ns.svc.cluster.local", "pi-launcher.pi.ns.svc",
                                 "pi-launcher.lab"});
}

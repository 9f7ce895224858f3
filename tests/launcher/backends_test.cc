#include "launcher/command/backends.h"

#include <catch2/catch.hpp>

namespace rueda::testing {
namespace {

TEST_CASE("each transport setting names its backends and itself as the reason", "[backends]") {
  struct Row {
    const char *transport, *inside, *between;
  };
  for (const Row& row : {Row{"auto", "shared memory", "TCP"}, Row{"tcp", "TCP", "TCP"},
                         Row{"mpi", "shared memory", "MPI"}, Row{"mpi-only", "MPI", "MPI"}}) {
    CAPTURE(row.transport);
    const auto found = launcher::backends(row.transport);
    REQUIRE(found.size() == 3);
    CHECK(found[0].name.find(row.inside) != std::string::npos);
    CHECK(found[1].name.find(row.between) != std::string::npos);
    for (int at : {0, 1})
      CHECK(found[at].reason.find("RUEDA_TRANSPORT=" + std::string(row.transport)) == 0);
    for (const char* kind : {"allreduce", "allgather", "broadcast", "reducescatter", "alltoall"})
      CHECK(launcher::backends_text(row.transport).find(kind) != std::string::npos);
  }
}

}  // namespace
}  // namespace rueda::testing

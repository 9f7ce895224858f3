#include "launcher/host_plan.h"

#include <catch2/catch.hpp>

using namespace rueda::launcher;

namespace {

const std::vector<std::string> kOwnNames = {"localhost", "127.0.0.1", "::1", "node7.lab", "node7"};

std::string refusal(int num_proc, const std::string& hosts) {
  const auto plan = plan_hosts(num_proc, hosts, kOwnNames);
  return plan.ok() ? "" : plan.status().message();
}

}  // namespace

TEST_CASE("every rank has its place on this host", "[host_plan]") {
  for (const char* hosts :
       {"", "localhost:3", "127.0.0.1:4", "::1,[::1]:2", "NODE7:3", "node7.lab:1,localhost:2"}) {
    INFO(hosts);
    const auto plan = plan_hosts(3, hosts, kOwnNames);
    REQUIRE(plan.ok());
    REQUIRE(plan.value().size() == 3);
    for (int rank = 0; rank < 3; ++rank) {
      const RankPlace& place = plan.value()[static_cast<size_t>(rank)];
      CHECK(place.rank == rank);
      CHECK(place.size == 3);
      CHECK(place.local_rank == rank);
      CHECK(place.local_size == 3);
      CHECK(place.cross_rank == 0);
      CHECK(place.cross_size == 1);
    }
  }
}

TEST_CASE("a host without a number has one slot", "[host_plan]") {
  const auto hosts = parse_hosts("a,b:4,[fe80::1]:2,fe80::2");
  REQUIRE(hosts.ok());
  std::string text;
  for (const HostSlots& host : hosts.value())
    text += host.host + "=" + std::to_string(host.slots) + " ";
  CHECK(text == "a=1 b=4 fe80::1=2 fe80::2=1 ");
}

TEST_CASE("hosts that cannot be used are refused with their reason", "[host_plan]") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"node8:4", "several hosts are not supported yet: 'node8'"},
      {"localhost:2,node8:2", "several hosts are not supported yet: 'node8'"},
      {"localhost", "-np 2 needs 2 slots, -H localhost has 1"},
      {"localhost:1", "-np 2 needs 2 slots"},
      {"localhost:", "slots are missing"},
      {"localhost:x", "'x' is no number of slots"},
      {"localhost:0", "'0' is no number of slots"},
      {"localhost:-1", "'-1' is no number of slots"},
      {"localhost:99999999999", "is no number of slots"},
      {":2", "the host is missing"},
      {"[]:2", "the host is missing"},
      {"[::1:2", "closing ]"},
      {"[::1]x", "expected [address]:slots"},
      {",localhost:2", "empty part"},
      {"localhost:2,", "empty part"},
  };
  for (const auto& [hosts, reason] : table) {
    INFO(hosts);
    CHECK_THAT(refusal(2, hosts), Catch::Contains(reason));
  }
}

#include "launcher/job/host_plan.h"

#include <catch2/catch.hpp>

using namespace rueda::launcher;
using rueda::Result;

namespace {

const std::vector<std::string> kOwnNames = {"localhost", "127.0.0.1", "::1", "node7.lab", "node7"};

Result<std::vector<HostPlan>> plan_of(int num_proc, const std::string& hosts) {
  if (hosts.empty()) return plan_hosts(num_proc, {}, kOwnNames, "");
  RUEDA_ASSIGN_OR_RETURN(const std::vector<HostSlots> parsed, parse_hosts(hosts));
  return plan_hosts(num_proc, parsed, kOwnNames, "-H " + hosts);
}

// "node8: 0=0/2,0/1 1=1/2,0/1" for each host: rank = local rank / size, cross rank / size.
std::string layout(int num_proc, const std::string& hosts) {
  const auto plan = plan_of(num_proc, hosts);
  if (!plan.ok()) return plan.status().message();
  std::string text;
  for (const HostPlan& host : plan.value()) {
    text += (text.empty() ? "" : "; ") + host.host.host + (host.ours ? " (here):" : ":");
    for (const RankPlace& place : host.places) {
      text += " " + std::to_string(place.rank) + "=" + std::to_string(place.local_rank) + "/" +
              std::to_string(place.local_size) + "," + std::to_string(place.cross_rank) + "/" +
              std::to_string(place.cross_size);
    }
  }
  return text;
}

}  // namespace

TEST_CASE("every rank has its place on this host", "[host_plan]") {
  for (const char* hosts :
       {"", "localhost:3", "127.0.0.1:4", "::1,[::1]:2", "NODE7:3", "node7.lab:1,localhost:2"}) {
    INFO(hosts);
    const auto plan = plan_of(3, hosts);
    REQUIRE(plan.ok());
    REQUIRE(plan.value().size() == 1);
    CHECK(plan.value().front().ours);
    REQUIRE(plan.value().front().places.size() == 3);
    for (int rank = 0; rank < 3; ++rank) {
      const RankPlace& place = plan.value().front().places[static_cast<size_t>(rank)];
      CHECK(place.rank == rank);
      CHECK(place.size == 3);
      CHECK(place.local_rank == rank);
      CHECK(place.local_size == 3);
      CHECK(place.cross_rank == 0);
      CHECK(place.cross_size == 1);
    }
  }
}

TEST_CASE("ranks fill one host after the other", "[host_plan]") {
  CHECK(layout(4, "a:2,b:2") == "a: 0=0/2,0/2 1=1/2,0/2; b: 2=0/2,1/2 3=1/2,1/2");
  CHECK(layout(3, "a:2,localhost:4") == "a: 0=0/2,0/2 1=1/2,0/1; localhost (here): 2=0/1,1/2");
  CHECK(layout(5, "a:1,b:2,c:2") == "a: 0=0/1,0/3; b: 1=0/2,1/3 2=1/2,0/2; c: 3=0/2,2/3 4=1/2,1/2");
  // Hosts that are not needed have no part in the job; names of one host are one host.
  CHECK(layout(2, "a:2,b:2") == "a: 0=0/2,0/1 1=1/2,0/1");
  CHECK(layout(3, "a,b,a") == "a: 0=0/2,0/2 1=1/2,0/1; b: 2=0/1,1/2");
}

TEST_CASE("every address of the loopback is this machine", "[host_plan]") {
  const std::vector<std::string> own = {"Here", "127.0.0.1"};
  for (const char* name : {"here", "127.0.0.1", "127.0.0.2", "127.1.2.3"})
    CHECK(is_ours(name, own));
  for (const char* name : {"128.0.0.1", "127.0.0.1.example.org", "there", "127", ""})
    CHECK_FALSE(is_ours(name, own));
  CHECK_FALSE(is_ours("127.0.0.2", {"node0"}));  // no name of ours is an address
}

TEST_CASE("more ranks than slots are refused", "[host_plan]") {
  CHECK(layout(2, "localhost") == "-np 2 needs 2 slots, -H localhost has 1");
  CHECK(layout(9, "a:4,b:4") == "-np 9 needs 9 slots, -H a:4,b:4 has 8");
}

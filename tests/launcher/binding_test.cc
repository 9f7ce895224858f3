// Which hardware threads each rank of a host gets.
#include "launcher/binding/binding.h"

#include <catch2/catch.hpp>
#include <map>

#include "collectives/base/number_text.h"

using namespace rueda;
using namespace rueda::launcher;

namespace {

// Like most servers: the first threads of all cores, then the second ones; cores node by node.
Topology machine(int nodes, int cores_per_node, int threads_per_core) {
  Topology topology;
  const int cores = nodes * cores_per_node;
  for (int core = 0; core < cores; ++core) {
    for (int thread = 0; thread < threads_per_core; ++thread)
      topology.threads.push_back({thread * cores + core, core, core / cores_per_node});
  }
  sort_threads(&topology);
  return topology;
}

std::string planned(const std::string& bind, const Topology& topology, int ranks,
                    double core_limit = 0) {
  const auto parsed = parse_bind(bind);
  if (!parsed.ok()) return parsed.status().message();
  const auto plan = plan_binding(parsed.value(), topology, ranks, core_limit);
  if (!plan.ok()) return plan.status().message();
  std::string text;
  for (const RankBinding& rank : plan.value()) {
    text += (text.empty() ? "" : " | ") + (rank.cpus.empty() ? "any" : ranges_text(rank.cpus)) +
            " x" + std::to_string(rank.threads);
  }
  return text;
}

}  // namespace

TEST_CASE("ranks that are not bound divide the cores, not the hardware threads", "[binding]") {
  CHECK(planned("", machine(1, 8, 1), 2) == "any x4 | any x4");
  CHECK(planned("none", machine(2, 4, 2), 2) == "any x4 | any x4");
  CHECK(planned("none", machine(1, 2, 1), 3) == "any x1 | any x1 | any x1");
  CHECK(planned("none", machine(2, 16, 1), 2, 6.0) == "any x3 | any x3");
}

TEST_CASE("numa spreads ranks over the nodes", "[binding]") {
  CHECK(planned("numa", machine(2, 4, 1), 2) == "0-3 x4 | 4-7 x4");
  CHECK(planned("numa", machine(2, 4, 2), 4) ==
        "0-3,8-11 x2 | 0-3,8-11 x2 | 4-7,12-15 x2 | 4-7,12-15 x2");
  CHECK(planned("numa", machine(2, 4, 1), 3) == "0-3 x2 | 0-3 x2 | 4-7 x4");
  CHECK(planned("numa", machine(2, 4, 1), 1) == "0-7 x8");  // one rank keeps the machine
  CHECK(planned("numa", machine(4, 2, 1), 2) == "0-3 x4 | 4-7 x4");
  CHECK(planned("numa", machine(1, 2, 1), 4) == "0-1 x1 | 0-1 x1 | 0-1 x1 | 0-1 x1");
}

TEST_CASE("core shares the cores, on nodes of their own where that can be", "[binding]") {
  CHECK(planned("core", machine(2, 4, 1), 2) == "0-3 x4 | 4-7 x4");
  CHECK(planned("core", machine(2, 4, 1), 4) == "0-1 x2 | 2-3 x2 | 4-5 x2 | 6-7 x2");
  CHECK(planned("core", machine(2, 4, 2), 8) ==
        "0,8 x1 | 1,9 x1 | 2,10 x1 | 3,11 x1 | 4,12 x1 | 5,13 x1 | 6,14 x1 | 7,15 x1");
  CHECK(planned("core", machine(2, 4, 1), 3) == "0-1 x2 | 2-3 x2 | 4-7 x4");
  CHECK(planned("core", machine(1, 3, 1), 2) == "0 x1 | 1-2 x2");
  CHECK(planned("core", machine(1, 8, 1), 2, 2.0) == "0-3 x1 | 4-7 x1");
}

TEST_CASE("no core is given to two ranks, and none is left idle", "[binding]") {
  for (const int nodes : {1, 2, 3, 4}) {
    for (int ranks = 1; ranks <= nodes * 5; ++ranks) {
      const auto plan = plan_binding(parse_bind("core").value(), machine(nodes, 5, 2), ranks, 0);
      REQUIRE(plan.ok());
      std::map<int, int> taken;
      for (const RankBinding& rank : plan.value()) {
        CHECK_FALSE(rank.cpus.empty());
        for (const int cpu : rank.cpus) ++taken[cpu];
      }
      CHECK(taken.size() == static_cast<size_t>(nodes * 10));
      for (const auto& [cpu, times] : taken) CHECK(times == 1);
    }
  }
}

TEST_CASE("a list is taken as it is written", "[binding]") {
  CHECK(planned("3:0-1,2", machine(2, 2, 1), 2) == "3 x1 | 0-2 x3");
  CHECK(planned("0-1:0-1:2", machine(2, 2, 1), 3) == "0-1 x1 | 0-1 x1 | 2 x1");
  CHECK(plan_binding(parse_bind("0-1:3").value(), machine(2, 2, 1), 2, 0).value()[1].text ==
        "cpu 3 (NUMA node 1), 1 thread");
}

TEST_CASE("what cannot be is said with what to do", "[binding]") {
  using Catch::Contains;
  CHECK_THAT(planned("core", machine(1, 2, 2), 4),
             Contains("2 cores on 1 NUMA node for 4 ranks") && Contains("--bind none"));
  CHECK_THAT(planned("0-1", machine(1, 2, 1), 2), Contains("1 list of cpus for 2 ranks"));
  CHECK_THAT(planned("0:7", machine(1, 2, 1), 2), Contains("cpu 7 is none that we may use: 0-1"));
  for (const char* wrong : {"cores", "1-", "2-1", "0,,1", ":0", "0:", "-1", "99999999999", "0x1"})
    CHECK_THAT(planned(wrong, machine(1, 2, 1), 1),
               Contains("expected none, core, numa, or lists"));
}

TEST_CASE("the kernel's files tell cores and nodes", "[binding]") {
  const std::map<std::string, std::string> files = {{"cpu0/topology/physical_package_id", "0\n"},
                                                    {"cpu0/topology/core_id", "0\n"},
                                                    {"cpu1/topology/physical_package_id", "1\n"},
                                                    {"cpu1/topology/core_id", "0\n"},
                                                    {"cpu2/topology/physical_package_id", "0\n"},
                                                    {"cpu2/topology/core_id", "0\n"},
                                                    {"cpu0/node0", ""},
                                                    {"cpu2/node0", ""},
                                                    {"cpu1/node1", ""}};
  const std::string root = "/sys/devices/system/cpu/";
  SysFiles fake;
  fake.read = [&](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path.substr(std::min(root.size(), path.size())));
    return found == files.end() ? std::nullopt : std::optional(found->second);
  };
  fake.exists = [&](const std::string& path) {
    return path == "/sys/devices/system/node/node0" || path == "/sys/devices/system/node/node1" ||
           (path.starts_with(root) && files.contains(path.substr(root.size())));
  };
  const Topology topology = read_sys({0, 1, 2}, fake);
  REQUIRE(topology.threads.size() == 3);
  CHECK(planned("core", topology, 2) == "0,2 x1 | 1 x1");
  // Without any file: one core per cpu, one node.
  fake.read = [](const std::string&) { return std::nullopt; };
  fake.exists = [](const std::string&) { return false; };
  CHECK(planned("core", read_sys({4, 5}, fake), 2) == "4 x1 | 5 x1");
}

TEST_CASE("this machine has cores", "[binding]") {
  const Topology topology = read_topology();
  CHECK(topology.threads.size() == own_cpus().size());
  CHECK_FALSE(topology.source.empty());
}

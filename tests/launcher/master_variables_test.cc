#include "launcher/job/master_variables.h"

#include <catch2/catch.hpp>

#include "launcher/job/rank_environment.h"

using namespace rueda::launcher;

namespace {

HostPlan planned(const std::string& name, bool ours) { return {{name, 2, "", 0}, ours, {{}, {}}}; }

std::string said_of(const std::vector<std::string>& environment, const std::string& name) {
  const char* value = find_variable(environment, name);
  return value == nullptr ? "(unset)" : value;
}

}  // namespace

TEST_CASE("programs that meet by themselves learn of rank 0's host and a port", "[launcher]") {
  std::vector<std::string> one, several, far;
  set_master_variables({planned("node1", true)}, &one);
  set_master_variables({planned("node1", true), planned("node2", false)}, &several);
  set_master_variables({planned("node2", false)}, &far);
  CHECK(said_of(one, "MASTER_ADDR") == "127.0.0.1");
  CHECK(said_of(several, "MASTER_ADDR") == "node1");
  CHECK(said_of(far, "MASTER_ADDR") == "node2");
  for (const auto& environment : {one, several, far}) {
    const int port = std::stoi(said_of(environment, "MASTER_PORT"));
    CHECK(port >= 1024);
    CHECK(port <= 65535);
  }
}

TEST_CASE("where programs meet is the user's when the user has said it", "[launcher]") {
  std::vector<std::string> said = {"MASTER_ADDR=elsewhere", "MASTER_PORT=29500"};
  const auto before = said;
  set_master_variables({planned("node1", true)}, &said);
  CHECK(said == before);
}

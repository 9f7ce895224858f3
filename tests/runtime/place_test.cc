#include "runtime/membership/place.h"

#include <catch2/catch.hpp>

#include <map>

namespace rueda::testing {
namespace {

using Environment = std::map<std::string, std::string>;

Result<membership::Place> place_in(
    const Environment& environment,
    const std::optional<membership::GivenPlace>& given = std::nullopt) {
  return membership::read_place(
      [&](const char* name) -> const char* {
        const auto it = environment.find(name);
        return it == environment.end() ? nullptr : it->second.c_str();
      },
      given);
}

void check_refused(const Environment& environment, const std::vector<std::string>& fragments) {
  auto place = place_in(environment);
  REQUIRE_FALSE(place.ok());
  INFO(place.status().to_string());
  CHECK(place.status().code() == Code::kFailedPrecondition);
  for (const std::string& fragment : fragments)
    CHECK(place.status().message().find(fragment) != std::string::npos);
}

const Environment kWhole = {{"RUEDA_RANK", "2"},
                            {"RUEDA_SIZE", "4"},
                            {"RUEDA_AGENT_FD", "5"},
                            {"RUEDA_KEY_FD", "6"},
                            {"RUEDA_MEMBER", "18446744073709551615"}};

TEST_CASE("nothing in the environment means a job of one rank", "[place]") {
  auto place = place_in({});
  REQUIRE(place.ok());
  CHECK(place->rank == 0);
  CHECK(place->size == 1);
  CHECK(place->agent_fd == -1);
}

TEST_CASE("ruedarun's variables give the place", "[place]") {
  Environment environment = kWhole;
  environment["RUEDA_JOB_ID"] = "job-1";
  auto place = place_in(environment);
  REQUIRE(place.ok());
  CHECK(place->rank == 2);
  CHECK(place->size == 4);
  CHECK(place->agent_fd == 5);
  CHECK(place->key_fd == 6);
  CHECK(place->job_id == "job-1");
  CHECK(place->member == 18446744073709551615U);
  CHECK_FALSE(place->elastic);
  environment["RUEDA_ELASTIC"] = "1";
  CHECK(place_in(environment)->elastic);
}

TEST_CASE("every missing variable is named", "[place]") {
  for (const auto& [name, value] : kWhole) {
    Environment environment = kWhole;
    environment.erase(name);
    check_refused(environment, {name});
  }
  check_refused({{"RUEDA_RANK", "0"}}, {"RUEDA_SIZE", "RUEDA_AGENT_FD", "RUEDA_KEY_FD"});
}

TEST_CASE("values that are no numbers or do not fit are named", "[place]") {
  for (const auto& [name, value] : kWhole) {
    for (const char* bad : {"", "x", "1x", "-1", " 1", "99999999999999999999"}) {
      Environment environment = kWhole;
      environment[name] = bad;
      check_refused(environment, {name});
    }
  }
  Environment environment = kWhole;
  environment["RUEDA_RANK"] = "4";
  check_refused(environment, {"RUEDA_RANK=4", "RUEDA_SIZE=4"});
  environment["RUEDA_SIZE"] = "0";
  check_refused(environment, {"RUEDA_SIZE=0"});
}

TEST_CASE("ruedarun's variables win over another launcher's", "[place]") {
  Environment environment = kWhole;
  environment["WORLD_SIZE"] = "16";
  environment["MASTER_ADDR"] = "h";
  CHECK(place_in(environment).ok());
}

TEST_CASE("what a program says whole wins over ruedarun, the rest must be the same", "[place]") {
  membership::GivenPlace given;
  given.rank = 1;
  given.size = 3;
  given.job = "other";
  given.by_address = given.has_key = given.whole = true;
  auto place = place_in(kWhole, given);
  REQUIRE(place.ok());
  CHECK((place->rank == 1 && place->size == 3 && place->job_id == "other"));
  CHECK((place->agentless && place->has_key && !place->one_host));
  CHECK((place->agent_fd == -1 && place->key_fd == -1 && place->life_fds.empty()));
  given.whole = false;
  place = place_in(kWhole, given);
  CHECK(place.status().message().find("give job, rendezvous and key") != std::string::npos);
  given.rank = 2;
  given.size = 4;
  place = place_in(kWhole, given);
  REQUIRE(place.ok());
  CHECK((place->agent_fd == 5 && !place->agentless));
}

TEST_CASE("whoever sets rank, size and a meeting point by hand needs no ruedarun", "[place]") {
  auto place = place_in({{"RUEDA_RANK", "1"}, {"RUEDA_SIZE", "2"}, {"RUEDA_RENDEZVOUS", "h:1"}});
  REQUIRE(place.ok());
  CHECK(place->rank == 1);
  CHECK(place->agentless);
  check_refused({{"RUEDA_RANK", "1"}, {"RUEDA_SIZE", "2"}}, {"RUEDA_AGENT_FD", "RUEDA_KEY_FD"});
}

TEST_CASE("hosts with different overrides are different, and differ from the real one", "[place]") {
  CHECK(membership::host_identity("a") != membership::host_identity("b"));
  CHECK(membership::host_identity("") == membership::host_identity(""));
  CHECK(membership::host_identity("") != membership::host_identity(membership::host_identity("")));
}

}  // namespace
}  // namespace rueda::testing

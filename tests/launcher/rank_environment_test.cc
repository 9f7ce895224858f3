#include "launcher/job/rank_environment.h"

#include <catch2/catch.hpp>
#include <map>

using namespace rueda::launcher;
using Environment = std::vector<std::string>;

namespace {

std::string get(const Environment& environment, const std::string& name) {
  const char* value = find_variable(environment, name);
  return value == nullptr ? "(unset)" : value;
}

}  // namespace

TEST_CASE("a rank is told its place in every dialect", "[rank_environment]") {
  const RankPlace place{3, 4, 1, 2, 1, 2};
  const auto env = rank_environment({"HOME=/h"}, {"abc", 4, 5}, {7, place}, 9);
  const std::map<std::string, std::string> expected = {{"HOME", "/h"},
                                                       {"RUEDA_RANK", "3"},
                                                       {"RUEDA_SIZE", "4"},
                                                       {"RUEDA_LOCAL_RANK", "1"},
                                                       {"RUEDA_LOCAL_SIZE", "2"},
                                                       {"RUEDA_CROSS_RANK", "1"},
                                                       {"RUEDA_CROSS_SIZE", "2"},
                                                       {"RUEDA_MEMBER", "7"},
                                                       {"RUEDA_JOB_ID", "abc"},
                                                       {"RUEDA_AGENT_FD", "9"},
                                                       {"RUEDA_KEY_FD", "5"},
                                                       {"RANK", "3"},
                                                       {"WORLD_SIZE", "4"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"HOROVOD_RANK", "3"},
                                                       {"HOROVOD_SIZE", "4"},
                                                       {"HOROVOD_LOCAL_RANK", "1"},
                                                       {"HOROVOD_LOCAL_SIZE", "2"},
                                                       {"HOROVOD_CROSS_RANK", "1"},
                                                       {"HOROVOD_CROSS_SIZE", "2"},
                                                       {"OMP_NUM_THREADS", "4"},
                                                       {"PYTHONUNBUFFERED", "1"}};
  CHECK(env.size() == expected.size());
  for (const auto& [name, value] : expected) {
    INFO(name);
    CHECK(get(env, name) == value);
  }
}

TEST_CASE("the user's number of threads wins", "[rank_environment]") {
  const RankPlace place{0, 4, 0, 4, 0, 1};
  CHECK(get(rank_environment({}, {"", 3, 5}, {0, place}, 9), "OMP_NUM_THREADS") == "3");
  CHECK(get(rank_environment({"OMP_NUM_THREADS=7"}, {"", 2, 5}, {0, place}, 9),
            "OMP_NUM_THREADS") == "7");
}

TEST_CASE("variables of other launchers are the user's when the user set them",
          "[rank_environment]") {
  const auto env = rank_environment({"RANK=41", "WORLD_SIZE=42"}, {"", 1, 5}, {}, 9);
  CHECK(get(env, "RANK") == "41");
  CHECK(get(env, "WORLD_SIZE") == "42");
}

TEST_CASE("a job inside a rank of another job sees nothing of the outer one",
          "[rank_environment]") {
  const auto outer =
      rank_environment({"RUEDA_LOG_LEVEL=info"}, {"abc", 1, 5}, {6, {6, 8, 6, 8, 0, 1}}, 9);
  const Environment base = base_environment(outer, {});
  CHECK(get(base, "RUEDA_LOG_LEVEL") == "info");
  for (const char* name : {"RUEDA_RANK", "RUEDA_SIZE", "RUEDA_JOB_ID", "RUEDA_AGENT_FD",
                           "RUEDA_KEY_FD", "RANK", "WORLD_SIZE", "HOROVOD_RANK"}) {
    INFO(name);
    CHECK(get(base, name) == "(unset)");
  }
}

TEST_CASE("flags and -x override the environment", "[rank_environment]") {
  Options options;
  options.settings = {{"RUEDA_LOG_LEVEL", "debug", "--log-level"}};
  options.environment = {{"COLOUR", "red"}};
  const auto base = base_environment({"RUEDA_LOG_LEVEL=info", "COLOUR=blue", "COLOURS=2"}, options);
  CHECK(get(base, "RUEDA_LOG_LEVEL") == "debug");
  CHECK(get(base, "COLOUR") == "red");
  CHECK(get(base, "COLOURS") == "2");
  CHECK(base.size() == 3);
}

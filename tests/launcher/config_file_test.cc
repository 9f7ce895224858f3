// The configuration file of Horovod's launcher: its keys, and what is said of the wrong ones.
#include "launcher/command/config_file.h"

#include <catch2/catch.hpp>
#include <map>

#include "launcher/job/rank_environment.h"
#include "tests/support/folder.h"

using rueda::launcher::FileSettings;
using rueda::launcher::parse_config_file;

namespace {

std::map<std::string, std::string> variables(const FileSettings& found) {
  std::map<std::string, std::string> out;
  for (const auto& setting : found.settings) out[setting.variable] = setting.value;
  return out;
}

FileSettings settings_of(const std::string& text) {
  const auto found = parse_config_file(text, "f.yaml");
  INFO((found.ok() ? "" : found.status().message()));
  REQUIRE(found.ok());
  return found.value();
}

}  // namespace

TEST_CASE("sections and keys become settings of the ranks", "[config_file]") {
  const FileSettings found = settings_of(R"(---
# Horovod's example
controller: mpi
params:
    fusion_threshold_mb: 32   # MiB
    cache_capacity: 2048
autotune:
    enabled: false

timeline:
  filename: 'it''s #1.json'
  mark_cycles: True
stall_check:
  enabled: yes
  warning_time_seconds: 120.5
  shutdown_time_seconds: ~
logging:
  level: "INFO"
  with_timestamp: off
)");
  CHECK(variables(found) ==
        std::map<std::string, std::string>{{"RUEDA_FUSION_THRESHOLD", "33554432"},
                                           {"RUEDA_CACHE_CAPACITY", "2048"},
                                           {"RUEDA_AUTOTUNE", "0"},
                                           {"RUEDA_TIMELINE", "it's #1.json"},
                                           {"RUEDA_TIMELINE_MARK_CYCLES", "1"},
                                           {"RUEDA_STALL_CHECK_TIME_SECONDS", "120.5"},
                                           {"RUEDA_LOG_LEVEL", "INFO"},
                                           {"RUEDA_LOG_HIDE_TIME", "1"}});
  CHECK(found.settings.front().flag == "params.fusion_threshold_mb (f.yaml:5)");
  CHECK(found.mpi == true);
  CHECK(found.notes.empty());
  CHECK(variables(settings_of("params: {cache_capacity: 1}")) ==
        std::map<std::string, std::string>{{"RUEDA_CACHE_CAPACITY", "1"}});
  CHECK(settings_of("").settings.empty());
  CHECK_FALSE(settings_of("params:\n").mpi.has_value());
}

TEST_CASE("a stall check that is switched off stays off, whatever its times are", "[config_file]") {
  for (const char* text : {"stall_check:\n  enabled: false\n  warning_time_seconds: 9\n",
                           "stall_check:\n  warning_time_seconds: 9\n  enabled: false\n"}) {
    CHECK(variables(settings_of(text)) ==
          std::map<std::string, std::string>{{"RUEDA_STALL_CHECK_TIME_SECONDS", "0"},
                                             {"RUEDA_STALL_SHUTDOWN_TIME_SECONDS", "0"}});
  }
}

TEST_CASE("autotuning is accepted; that no log is written is said", "[config_file]") {
  const FileSettings found = settings_of("autotune:\n  enabled: true\n  log_file: a.csv\n");
  CHECK(variables(found) == std::map<std::string, std::string>{{"RUEDA_AUTOTUNE", "1"}});
  REQUIRE(found.notes.size() == 1);
  CHECK_THAT(found.notes[0], Catch::Contains("autotune.log_file (f.yaml:3) has no effect: ") &&
                                 Catch::Contains("no log is written"));
}

TEST_CASE("what has no effect, or is not known, is said", "[config_file]") {
  const FileSettings found = settings_of(
      "params:\n  cycle_time_ms: 5\n  hierarchical_allreduce: false\n  cache_capacty: 3\n"
      "parms:\n  cycle_time_ms: 1\nlibrary_options:\n  num_nccl_streams: 2\n");
  CHECK(found.settings.empty());
  REQUIRE(found.notes.size() == 4);
  CHECK_THAT(found.notes[0], Catch::Equals("parms (f.yaml:5) is not known; did you mean params?"));
  CHECK_THAT(found.notes[1], Catch::Contains("params.cycle_time_ms (f.yaml:2) has no effect: "));
  CHECK_THAT(found.notes[2], Catch::Equals("params.cache_capacty (f.yaml:4) is not known; did you "
                                           "mean params.cache_capacity?"));
  CHECK_THAT(found.notes[3],
             Catch::Contains("library_options.num_nccl_streams (f.yaml:8) has no effect"));
}

TEST_CASE("a wrong file is refused with its line and reason", "[config_file]") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"controller: slurm\n", "controller (f.yaml:1): expected gloo or mpi, found 'slurm'"},
      {"library_options:\n  thread_affinity: 0\n", "--bind"},
      {"params:\n  fusion_threshold_mb: big\n", "expected a whole number, found 'big'"},
      {"params:\n  cache_capacity: -1\n", "expected 0 or more, found -1"},
      {"stall_check:\n  enabled: maybe\n", "expected true or false, found 'maybe'"},
      {"stall_check:\n  warning_time_seconds: 1e999\n", "expected seconds"},
      {"params:\n  cache_capacity: 1\n  cache_capacity: 2\n",
       "f.yaml:3: params.cache_capacity is there twice"},
      {"params:\n  cache_capacity: 1\nparams:\n  cycle_time_ms: 2\n",
       "f.yaml:3: params is there twice"},
      {"params:\n  cache_capacity: [1]\n", "f.yaml:2: params.cache_capacity: expected one value"},
      {"params:\n  cache_capacity: {a: 1}\n",
       "f.yaml:2: params.cache_capacity: expected one value"},
      {"controller: ''\n", "f.yaml:1: controller: the value is empty"},
      {"- 1\n", "f.yaml:1: expected 'key: value' lines in sections"},
      {"just text\n", "f.yaml:1: expected 'key: value' lines in sections"},
      {"[a]: 1\n", "f.yaml:1: this is no name of a key"},
      {"params:\n\tcache_capacity: 1\n", "f.yaml:2: "},
      {"controller: mpi\n  cache_capacity: 1\n", "f.yaml:2: "},
      {"timeline:\n  filename: a: b\n", "f.yaml:2: "},
      {"a: *b\n", "f.yaml:1: "},
      {std::string(100000, '['), "f.yaml:1: "},
  };
  for (const auto& [text, reason] : table) {
    INFO(text);
    const auto found = parse_config_file(text, "f.yaml");
    CHECK_FALSE(found.ok());
    CHECK_THAT(found.status().message(), Catch::Contains(reason));
  }
}

TEST_CASE("flags win over the file, the file over the environment", "[config_file]") {
  const rueda::testing::Folder folder;
  folder.write("c.yaml",
               "controller: mpi\nparams:\n  cache_capacity: 7\nlogging:\n  level: info\n"
               "stall_check:\n  enabled: false\n");
  const auto chosen = [&](const std::vector<std::string>& flags, const char* variable) {
    std::vector<std::string> words = {"-np", "1", "--config-file", folder.file("c.yaml")};
    words.insert(words.end(), flags.begin(), flags.end());
    words.push_back("true");
    auto options = rueda::launcher::parse_options(words, "1.2.3");
    REQUIRE(options.ok());
    REQUIRE(rueda::launcher::add_config_file(&options.value()).ok());
    if (std::string(variable) == "mpi") return std::string(options.value().mpi ? "1" : "0");
    const auto base = rueda::launcher::base_environment(
        {"RUEDA_CACHE_CAPACITY=3", "RUEDA_LOG_LEVEL=error"}, options.value());
    const char* value = rueda::launcher::find_variable(base, variable);
    return std::string(value == nullptr ? "" : value);
  };
  CHECK(chosen({}, "RUEDA_CACHE_CAPACITY") == "7");
  CHECK(chosen({"--cache-capacity", "9"}, "RUEDA_CACHE_CAPACITY") == "9");
  CHECK(chosen({"--log-level", "debug"}, "RUEDA_LOG_LEVEL") == "debug");
  CHECK(chosen({}, "RUEDA_STALL_CHECK_TIME_SECONDS") == "0");
  CHECK(chosen({"--stall-check"}, "RUEDA_STALL_CHECK_TIME_SECONDS").empty());
  CHECK(chosen({}, "mpi") == "1");
  CHECK(chosen({"--gloo"}, "mpi") == "0");

  rueda::launcher::Options absent;
  absent.config_file = folder.file("none.yaml");
  CHECK_THAT(
      rueda::launcher::add_config_file(&absent).message(),
      Catch::Contains("cannot read the configuration file") && Catch::Contains("No such file"));
}

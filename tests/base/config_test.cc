#include "collectives/base/config.h"

#include <catch2/catch.hpp>
#include <map>

namespace rueda {
namespace {

GetEnv from(const std::map<std::string, std::string>& variables) {
  return [&variables](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

TEST_CASE("an empty environment gives the defaults", "[config]") {
  const std::map<std::string, std::string> none;
  const auto config = load_config(from(none));
  REQUIRE(config.ok());
  CHECK(config.value().fusion_threshold_bytes == 64 << 20);
  CHECK(config.value().transport == "auto");
}

TEST_CASE("RUEDA_ variables win over HOROVOD_ ones, and the origin is told", "[config]") {
  std::map<std::string, std::string> variables = {{"HOROVOD_FUSION_THRESHOLD", "1024"}};
  CHECK(load_config(from(variables)).value().fusion_threshold_bytes == 1024);
  variables["RUEDA_FUSION_THRESHOLD"] = "2048";
  CHECK(load_config(from(variables)).value().fusion_threshold_bytes == 2048);
  const auto entries = describe_config(from(variables)).value();
  REQUIRE(entries.front().variable == "RUEDA_FUSION_THRESHOLD");
  CHECK(entries.front().origin == "RUEDA_FUSION_THRESHOLD");
  CHECK(entries.front().value == "2048");
  CHECK(entries.front().default_value == "67108864");
}

TEST_CASE("Horovod's switch for the stall check sets both times to 0", "[config]") {
  std::map<std::string, std::string> variables = {{"HOROVOD_STALL_CHECK_DISABLE", "1"},
                                                  {"HOROVOD_STALL_CHECK_TIME_SECONDS", "7"},
                                                  {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "9"}};
  const auto config = load_config(from(variables)).value();
  CHECK(config.stall_check_seconds == 0);
  CHECK(config.stall_shutdown_seconds == 0);
  const auto described = describe_config(from(variables)).value();
  for (const auto& entry : described) {
    if (entry.variable == "RUEDA_STALL_CHECK_TIME_SECONDS")
      CHECK(entry.origin == "HOROVOD_STALL_CHECK_DISABLE");
  }

  variables["HOROVOD_STALL_CHECK_DISABLE"] = "0";
  CHECK(load_config(from(variables)).value().stall_check_seconds == 7);
  variables["HOROVOD_STALL_CHECK_DISABLE"] = "1";
  variables["RUEDA_STALL_CHECK_TIME_SECONDS"] = "8";
  CHECK(load_config(from(variables)).value().stall_check_seconds == 8);
}

TEST_CASE("a bad value names the variable, the value and what is accepted", "[config]") {
  const std::pair<const char*, const char*> bad[] = {{"RUEDA_CHUNK_BYTES", "5000"},
                                                     {"RUEDA_CHUNK_BYTES", "64k"},
                                                     {"RUEDA_STAGING_BUFFERS", "0"},
                                                     {"RUEDA_STAGING_BUFFERS", "65"},
                                                     {"RUEDA_TRANSPORT", "gloo"},
                                                     {"RUEDA_LOG_LEVEL", "loud"},
                                                     {"RUEDA_START_TIMEOUT", "-1"},
                                                     {"RUEDA_START_TIMEOUT", "inf"},
                                                     {"RUEDA_START_TIMEOUT", "nan"},
                                                     {"RUEDA_CACHE_CAPACITY", ""},
                                                     {"RUEDA_FUSION_THRESHOLD", "-5"},
                                                     {"RUEDA_FUSION_THRESHOLD", "1e30"},
                                                     {"RUEDA_HEAP_BYTES", "-1"},
                                                     {"RUEDA_LOG_HIDE_TIME", "2"},
                                                     {"HOROVOD_TIMELINE_MARK_CYCLES", "yes"},
                                                     {"HOROVOD_STALL_CHECK_DISABLE", "yes"}};
  for (const auto& [variable, value] : bad) {
    const std::map<std::string, std::string> variables = {{variable, value}};
    const auto config = load_config(from(variables));
    INFO(variable << "=" << value);
    REQUIRE_FALSE(config.ok());
    CHECK(config.status().code() == Code::kInvalidArgument);
    CHECK(config.status().message().find(variable) != std::string::npos);
    CHECK(config.status().message().find("expected") != std::string::npos);
  }
}

TEST_CASE("every default may be said aloud, and is then what was set", "[config]") {
  const std::map<std::string, std::string> none;
  const auto defaults = describe_config(from(none)).value();
  std::map<std::string, std::string> said;
  for (const auto& entry : defaults) said[entry.variable] = entry.default_value;
  const auto described = describe_config(from(said));
  REQUIRE(described.ok());
  REQUIRE(described.value().size() == defaults.size());
  for (size_t i = 0; i < defaults.size(); ++i) {
    CHECK(described.value()[i].value == defaults[i].value);
    CHECK(described.value()[i].origin == defaults[i].variable);
  }
}

TEST_CASE("bounds are inclusive, words are whole, some in any case", "[config]") {
  const std::tuple<const char*, const char*, const char*> table[] = {
      {"RUEDA_STAGING_BUFFERS", "1", ""},
      {"RUEDA_STAGING_BUFFERS", "64", ""},
      {"RUEDA_STAGING_BUFFERS", "0", "1 to 64"},
      {"RUEDA_TCP_STREAMS", "17", "1 to 16"},
      {"RUEDA_MPI_CHUNK_BYTES", "1073741824", ""},
      {"RUEDA_MPI_CHUNK_BYTES", "1073741825", "1 to 1073741824"},
      {"RUEDA_CHUNK_BYTES", "16777216", ""},
      {"RUEDA_CHUNK_BYTES", "2048", "a power of two from 4096 to 16777216"},
      {"RUEDA_CHUNK_BYTES", "12288", "a power of two from 4096 to 16777216"},
      {"RUEDA_DEAD_SECONDS", "0.5", ""},
      {"RUEDA_DEAD_SECONDS", "0.49", "0.5 to 600 seconds"},
      {"RUEDA_DEAD_SECONDS", "nan", "a finite number"},
      {"RUEDA_START_TIMEOUT", "0", "a number greater than 0, at most 1000000000"},
      {"RUEDA_START_TIMEOUT", "1e9", ""},
      {"RUEDA_START_TIMEOUT", "1e10", "a number greater than 0, at most 1000000000"},
      {"RUEDA_DISCOVERY_INTERVAL", "inf", "a number greater than 0, at most 1000000000"},
      {"RUEDA_FUSION_THRESHOLD", "0", ""},
      {"RUEDA_FUSION_THRESHOLD", "-1", "a number that is not negative"},
      {"RUEDA_TRANSPORT", "mpi-only", ""},
      {"RUEDA_TRANSPORT", "mpi-", "auto, tcp, mpi or mpi-only"},
      {"RUEDA_TRANSPORT", "auto tcp", "auto, tcp, mpi or mpi-only"},
      {"RUEDA_TRANSPORT", "", "auto, tcp, mpi or mpi-only"},
      {"RUEDA_TRANSPORT", "TCP", "auto, tcp, mpi or mpi-only"},
      {"RUEDA_LOG_LEVEL", "Debug", ""},
      {"RUEDA_CUDA_DRIVER", "any text", ""}};
  for (const auto& [variable, value, expected] : table) {
    INFO(variable << "=" << value);
    const std::map<std::string, std::string> variables = {{variable, value}};
    const auto config = load_config(from(variables));
    REQUIRE(config.ok() == (expected[0] == '\0'));
    if (!config.ok()) {
      CHECK(config.status().message() ==
            std::string(variable) + "='" + value + "': expected " + expected);
    }
  }
}

TEST_CASE("settings that were renamed are refused with the new name", "[config]") {
  for (const auto& [before, now] : std::map<std::string, std::string>{
           {"RUEDA_ROAD", "RUEDA_SHM_PROTOCOL"}, {"RUEDA_WINDOWS", "RUEDA_STAGING_BUFFERS"}}) {
    const auto config = load_config(
        [&](const char* name) -> const char* { return before == name ? "auto" : nullptr; });
    REQUIRE_FALSE(config.ok());
    CHECK_THAT(config.status().message(),
               Catch::Contains(before + " has been renamed: use " + now));
  }
}

TEST_CASE("agreed settings hold what all ranks must share and nothing local", "[config]") {
  Config config;
  const std::string before = agreed_settings(config);
  config.log_level = "debug";
  config.timeline = "t.json";
  config.timeline_all_ranks = true;
  config.summary = true;
  CHECK(agreed_settings(config) == before);
  config.chunk_bytes *= 2;
  CHECK(agreed_settings(config) != before);
}

TEST_CASE("of settings that ranks must share those that differ are named", "[config]") {
  Config one, other;
  CHECK(settings_that_differ(agreed_settings(one), agreed_settings(other)) == "");
  one.chunk_bytes = 4096;
  other.transport = "tcp";
  CHECK(settings_that_differ(agreed_settings(one), agreed_settings(other)) ==
        "RUEDA_CHUNK_BYTES=4096 instead of 262144, RUEDA_TRANSPORT=auto instead of tcp");
}

}  // namespace
}  // namespace rueda

// Every setting of rueda in one typed object, built once and passed down.
//
// A setting is read from RUEDA_<NAME>, else from Horovod's variable where Horovod had the same,
// else it has its default. struct Config and the table behind it are made from tables/settings.py;
// the table is what `ruedarun --print-config` prints. Nobody else calls getenv, except the
// launcher's options and membership's description of the process's place
// (runtime/membership/place.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "collectives/base/config_struct.h"
#include "collectives/base/status.h"

namespace rueda {

// One row of `--print-config`.
struct ConfigEntry {
  std::string variable;          // "RUEDA_FUSION_THRESHOLD"
  std::string horovod_variable;  // "" where Horovod has none
  std::string default_value;
  std::string meaning;
  std::string value;   // in force
  std::string origin;  // "default", "RUEDA_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"
};

// Looks a variable up; tests pass a map, the composition root passes the environment. nullptr: not
// set.
using GetEnv = std::function<const char*(const char*)>;

// InvalidArgument names the variable, the value and what is accepted. An unknown RUEDA_* variable
// is not an error here (the launcher sets some that are not configuration).
Result<Config> load_config(const GetEnv& get_env);
// The same table with values and origins. Fails as load_config does.
Result<std::vector<ConfigEntry>> describe_config(const GetEnv& get_env);
// Settings that must be equal on all ranks as "name=value" lines, for the comparison at init.
std::string agreed_settings(const Config& config);
// Of two such texts, what differs: "RUEDA_CHUNK_BYTES=4096 instead of 8192, RUEDA_TRANSPORT=...".
std::string settings_that_differ(const std::string& theirs, const std::string& ours);

}  // namespace rueda

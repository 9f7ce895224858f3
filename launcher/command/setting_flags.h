// The flags of ruedarun, and the keys of its configuration file, that set variables for the ranks:
// as data, made from collectives/base/tables/settings.py.
#pragma once

#include <cstdint>
#include <span>

namespace rueda::launcher {

// What a flag or a key takes. kMebibytes: a whole number, of a variable in bytes. kSwitch: a flag
// nothing, a key true or false.
enum class Takes { kText, kWhole, kMebibytes, kReal, kSwitch };

struct SettingFlag {
  const char* spellings;  // as CLI11 reads them: "--a,--b,!--no-a"
  const char* help;
  const char* variable;  // "": sets nothing
  Takes takes;
  const char *on, *off;         // of a switch: the variable's values; nullptr: sets nothing
  const char *name, *off_name;  // what --print-config calls it
  const char* excludes;         // a flag before this one; "": none
  const char* overrules;        // a key of the configuration file that has no say then
};

struct SettingKey {
  const char* key;  // "params.cache_capacity"; may be there for several variables
  const char* variable;
  Takes takes;
  const char *on, *off;
};

inline constexpr int64_t kMostMebibytes = int64_t{1} << 40;  // that fit into bytes

// In the order of --help.
std::span<const SettingFlag> setting_flags();
std::span<const SettingKey> setting_keys();

}  // namespace rueda::launcher

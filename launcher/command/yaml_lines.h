// The values of a YAML file of two levels, sections with keys, in the order of the file. yaml-cpp
// reads it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::launcher {

struct YamlLine {
  std::string section;  // "" for a key of the first level
  std::string key;      // "" for the line of the section itself
  std::string value;    // a scalar's text; never empty where there is a key
  int line = 0;         // from 1
};

// Keys without a value (YAML's null) are left out. InvalidArgument begins with "NAME:LINE: ": what
// is no YAML, lists, maps below the second level, empty values, keys and sections that are there
// twice.
Result<std::vector<YamlLine>> read_yaml_lines(std::string_view text, const std::string& name);

}  // namespace rueda::launcher

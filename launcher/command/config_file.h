// `--config-file`: settings from a file with the keys of horovodrun's.
//
//   controller: gloo          # or mpi
//   params:
//     fusion_threshold_mb: 32
//
// YAML of two levels, read by yaml-cpp (yaml_lines.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/command/options.h"

namespace rueda::launcher {

struct FileSettings {
  std::vector<Setting> settings;     // `flag` is the origin: "params.cache_capacity (f.yaml:3)"
  std::vector<ElasticWord> elastic;  // likewise
  std::optional<bool> mpi;           // of controller
  std::vector<std::string> notes;    // for the user: unknown keys, and those without effect here
};

// The settings of a file's text; `name` is the file's, for messages. Pure. InvalidArgument names
// the line.
Result<FileSettings> parse_config_file(std::string_view text, const std::string& name);

// Reads options->config_file, if there is one, into options; flags win over it.
Status add_config_file(Options* options);

}  // namespace rueda::launcher

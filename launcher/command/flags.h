// The flags of ruedarun as CLI11 reads them: those that fill Options (the table in flags.cc), and
// those that set variables for the ranks (setting_flags.h).
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "launcher/command/options.h"

namespace rueda::launcher {

// What the flags say: Options, and what is not understood yet.
struct CommandLine : Options {
  std::string count;                   // of -np
  std::vector<std::string> variables;  // of -x
  std::string ranks;                   // of --ranks
  std::string reader = "auto";         // of --stdin
  bool version = false, check_build = false, print_config = false;
  bool disable_cache = false;  // has no effect, as the next
  std::string cycle_time;
};

// *line is filled when app parses, and must live until then.
void add_flags(CLI::App* app, CommandLine* line);
// The whole of ruedarun's command line: description, examples and flags (options.cc).
void make_app(CLI::App* app, CommandLine* line);

// "-np", "-hostfile=f": with the two dashes that CLI11 wants where launchers of this field spell
// one; anything else as it is.
std::string with_two_dashes(const std::string& word);
// "-np" of "--num-proc"; empty where there is no such spelling.
std::string with_one_dash(const std::string& flag);
// "--num-proc" is "-np" in every example, and so in messages.
std::string as_typed(const std::string& flag);

}  // namespace rueda::launcher

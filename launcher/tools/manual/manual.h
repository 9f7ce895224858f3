// Manual pages and completions of shells, made from the tables of options: what --help prints, in
// the forms that `man`, bash, zsh and fish read. Pure.
#pragma once

#include <string>
#include <vector>

namespace rueda::launcher {

// One option as a shell or a reader sees it.
struct ManualOption {
  std::vector<std::string> spellings;  // "-n", "--num-proc"
  bool takes_value = false;
  bool takes_file = false;
  std::string group, help;
};

struct Manual {
  std::string program, version;
  std::string summary;                                        // one line
  std::vector<std::string> paragraphs;                        // what --help says before the options
  std::vector<std::pair<std::string, std::string>> commands;  // name, help
  std::vector<ManualOption> options;
  bool starts_command = false;  // behind its options a command line of its own begins
};

Manual manual_of_ruedarun(const std::string& version);
Manual manual_of_rueda(const std::string& version);

std::string man_page(const Manual& manual);
std::string bash_completion(const Manual& manual);
std::string zsh_completion(const Manual& manual);
std::string fish_completion(const Manual& manual);

}  // namespace rueda::launcher

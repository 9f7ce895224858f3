// The command line of ruedarun as a value.
//
// Pure: reads nothing but its arguments. Failure: InvalidArgument with one line for the user; the
// caller prints it and exits with kUsageError.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/command/elastic_options.h"

namespace rueda::launcher {

inline constexpr int kUsageError = 2;
inline constexpr int kMaxRanks = 65536;

// A RUEDA_* variable that a flag sets for every rank.
struct Setting {
  std::string variable;  // "RUEDA_LOG_LEVEL"
  std::string value;
  std::string flag;  // "--log-level"
};

struct Options {
  enum class Action { kRun, kPrintText, kCheckBuild, kPrintConfig };
  // Who reads our standard input. kAuto: rank 0, when it is a terminal.
  enum class Stdin { kAuto, kNobody, kOneRank };

  Action action = Action::kRun;
  std::string text;           // of kPrintText: help or version
  int num_proc = 0;           // 0: not said, or auto
  bool auto_ranks = false;    // -np auto
  std::string hosts;          // -H as written; empty, as hostfile: as many slots here as needed
  std::string hostfile;       // its path
  std::string rsh_agent;      // starts agents on other hosts; empty: ssh
  int ssh_port = 0;           // 0: as ssh sees fit
  std::string identity_file;  // of ssh
  std::string network_interfaces;  // which addresses may be used: hosts/addresses.h
  std::string token_file;          // agents join by themselves with what is written there
  int listen_port = 0;             // of the controller; 0: any
  std::string remote_program;      // ruedarun on the other hosts; empty: the same path as here
  double silence_seconds = 5;      // then an agent, or the controller, is taken for dead
  double grace_seconds = 5;
  bool verbose = false;
  bool prefix = true;
  bool prefix_timestamp = false;
  std::optional<bool> fold;        // equal lines of several ranks are one; nothing: on a terminal
  std::set<int> shown_ranks;       // whose output is printed; empty: everybody's
  std::string output_folder;       // copies of the ranks' output; empty: none
  std::string bind;                // --bind, checked: binding/binding.h
  std::string config_file;         // read by config_file.h
  std::string deepspeed_config;    // looked at by deepspeed_config.h
  bool gloo = false;               // --gloo: mpi is not wanted, whatever a configuration file says
  std::vector<std::string> notes;  // of the configuration file, for the user
  bool mpi = false;                // mpirun starts the ranks: mpi/mpirun_command.h
  std::string mpi_args;            // more words for it, as a shell would read them
  std::string mpirun;              // its path; empty: the one that belongs to librueda_mpi.so
  ElasticOptions elastic;          // how ranks may come and go
  std::vector<ElasticWord> elastic_words;  // of which it was made, what comes later wins
  bool horovod = false;                    // `import horovod` means rueda: horovod_path.h
  Stdin stdin_mode = Stdin::kAuto;
  int stdin_rank = 0;
  std::vector<Setting> settings;
  std::vector<std::pair<std::string, std::string>> environment;  // of -x VAR=VALUE, in order
  std::vector<std::string> named_variables;                      // of -x VAR
  std::vector<std::string> overruled_keys;  // of the configuration file: a flag says the opposite
  std::vector<std::string> command;
};

// `arguments` without the program's name. `version` is what --version prints.
Result<Options> parse_options(const std::vector<std::string>& arguments,
                              const std::string& version);

// Whether the ranks that flags name are among num_proc, once that is known.
Status check_ranks(const Options& options);

}  // namespace rueda::launcher

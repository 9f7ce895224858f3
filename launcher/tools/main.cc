// rueda: questions about an installation and its speed. `rueda doctor` is what to read first when
// something does not work, and to send along when asking about it.
#include <cstdio>
#include <string>
#include <vector>

#include "launcher/command/nearest_name.h"
#include "launcher/command/options.h"
#include "launcher/tools/bench/bench.h"
#include "launcher/tools/commands.h"
#include "launcher/tools/doctor/doctor.h"
#include "launcher/tools/flight_command.h"
#include "launcher/tools/plan/command.h"
#include "launcher/tools/top/top.h"

namespace {

void print_usage(std::FILE* out) {
  const char* begin = "Usage:";
  for (const auto& command : rueda::tools::kCommands) {
    const std::string call = std::string(command.name) + " " + command.arguments;
    std::fprintf(out, "%-6s rueda %-18s %s\n", begin, call.c_str(), command.help);
    begin = "";
  }
  std::fputs(
      "       rueda --version\n"
      "rueda COMMAND --help says more. Jobs are started with ruedarun.\n",
      out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 2 && std::string(argv[1]) == "bench")
    return rueda::bench::run_bench(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "attention")
    return rueda::plan::run_attention(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "explain")
    return rueda::launcher::run_explain(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "status")
    return rueda::launcher::run_status(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "top")
    return rueda::top::run_top(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "drain")
    return rueda::launcher::run_drain(std::vector<std::string>(argv + 2, argv + argc));
  for (const char* python : {"migrate", "demo", "new"}) {
    if (argc < 2 || std::string(argv[1]) != python) continue;
    std::fprintf(stderr, "rueda: %s is part of the Python package: python -m rueda %s\n", python,
                 python);
    return rueda::launcher::kUsageError;
  }
  if (argc >= 2 && std::string(argv[1]) == "doctor")
    return rueda::doctor::run_doctor(std::vector<std::string>(argv + 2, argv + argc));
  const std::string word = argc == 2 ? argv[1] : "";
  if (word == "--version" || word == "-v") {
    std::puts(RUEDA_LAUNCHER_VERSION);
    return 0;
  }
  const bool asked = word == "--help" || word == "-h";
  if (argc >= 2 && !asked) {
    std::vector<std::string> names;
    for (const auto& command : rueda::tools::kCommands) names.emplace_back(command.name);
    std::fprintf(stderr, "rueda: there is no command '%s'%s\n", argv[1],
                 rueda::launcher::did_you_mean(argv[1], names).c_str());
  }
  print_usage(asked ? stdout : stderr);
  return asked ? 0 : rueda::launcher::kUsageError;
}

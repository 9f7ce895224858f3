// rueda: questions about an installation and its speed. `rueda doctor` is what to read first when
// something does not work, and to send along when asking about it.
#include <cstdio>
#include <string>
#include <vector>

#include "launcher/command/nearest_name.h"
#include "launcher/command/options.h"
#include "launcher/tools/bench/bench.h"
#include "launcher/tools/doctor/doctor.h"
#include "launcher/tools/flight_command.h"
#include "launcher/tools/plan/command.h"

int main(int argc, char** argv) {
  if (argc >= 2 && std::string(argv[1]) == "bench")
    return rueda::bench::run_bench(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "attention")
    return rueda::plan::run_attention(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "explain")
    return rueda::launcher::run_explain(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "status")
    return rueda::launcher::run_status(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "drain")
    return rueda::launcher::run_drain(std::vector<std::string>(argv + 2, argv + argc));
  if (argc >= 2 && std::string(argv[1]) == "migrate") {
    std::fputs("rueda: migrate is part of the Python package: python -m rueda.migrate SCRIPT...\n",
               stderr);
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
  if (argc >= 2 && !asked)
    std::fprintf(stderr, "rueda: there is no command '%s'%s\n", argv[1],
                 rueda::launcher::did_you_mean(argv[1], {"doctor", "bench", "attention", "status",
                                                         "drain", "explain", "migrate"})
                     .c_str());
  std::fputs(
      "Usage: rueda doctor       what was found on this host, and what to do (rueda doctor "
      "--help)\n"
      "       rueda bench        how fast collectives are on it (rueda bench --help)\n"
      "       rueda attention plan  what each rank computes and sends in a distributed attention\n"
      "       rueda status       what the ranks of a running job do (rueda status --help)\n"
      "       rueda drain        asks a running job to end at the same step on all ranks\n"
      "       rueda explain DIR  why a job hung or failed, from its flight recorders\n"
      "       rueda migrate      what differs for Horovod scripts (python -m rueda.migrate "
      "--help)\n"
      "       rueda --version\n"
      "Jobs are started with ruedarun.\n",
      asked ? stdout : stderr);
  return asked ? 0 : rueda::launcher::kUsageError;
}

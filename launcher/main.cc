// ruedarun: starts the ranks of a job. Options in options.h, the processes in driver.h.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "collectives/base/config.h"
#include "launcher/agent/host_agent.h"
#include "launcher/binding/host_binding.h"
#include "launcher/command/backends.h"
#include "launcher/command/config_file.h"
#include "launcher/command/deepspeed_config.h"
#include "launcher/command/nearest_name.h"
#include "launcher/command/options.h"
#include "launcher/driver.h"
#include "launcher/job/horovod_path.h"
#include "launcher/job/rank_environment.h"
#include "launcher/mpi/mpirun_command.h"
#include "launcher/probe.h"

namespace {

using rueda::launcher::Options;

// Every setting with value, origin, default and meaning, as the ranks would see it, and which
// backend serves what because of them.
int print_config(const Options& options, const std::vector<std::string>& environment) {
  const auto base = rueda::launcher::base_environment(environment, options);
  const auto entries = rueda::describe_config(
      [&](const char* name) { return rueda::launcher::find_variable(base, name); });
  if (!entries.ok()) {
    std::fprintf(stderr, "ruedarun: %s\n", entries.status().message().c_str());
    return rueda::launcher::kUsageError;
  }
  std::printf("%-36s %-14s %-36s %-14s %s\n", "variable", "value", "origin", "default", "meaning");
  const auto shown = [](const std::string& text) { return text.empty() ? "-" : text.c_str(); };
  std::string transport;
  for (const rueda::ConfigEntry& entry : entries.value()) {
    std::string origin = entry.origin;
    for (const auto& setting : options.settings) {
      if (setting.variable == entry.variable) origin = setting.flag;
    }
    std::printf("%-36s %-14s %-36s %-14s %s\n", entry.variable.c_str(), shown(entry.value),
                origin.c_str(), shown(entry.default_value), entry.meaning.c_str());
    if (entry.variable == "RUEDA_TRANSPORT") transport = entry.value;
  }
  std::printf("%s", rueda::launcher::backends_text(transport).c_str());
  const auto binding = rueda::launcher::binding_text(options.bind, options.num_proc);
  if (!binding.ok()) {
    std::fprintf(stderr, "ruedarun: %s\n", binding.status().message().c_str());
    return rueda::launcher::kUsageError;
  }
  std::printf("%s", binding.value().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);

  if (!arguments.empty() && (arguments[0] == "agent" || arguments[0] == "join"))
    return rueda::launcher::run_host_agent(arguments, environment, RUEDA_LAUNCHER_VERSION);
  auto options = rueda::launcher::parse_options(arguments, RUEDA_LAUNCHER_VERSION);
  if (options.ok()) {
    auto found = rueda::launcher::add_config_file(&options.value());
    if (found.ok()) found = rueda::launcher::add_deepspeed_config(&options.value());
    if (found.ok()) found = rueda::launcher::add_horovod_path(environment, &options.value());
    if (found.ok()) found = rueda::launcher::choose_mpi_transport(environment, &options.value());
    if (found.ok() && options.value().action == Options::Action::kRun) {
      found = rueda::launcher::check_elastic(options.value(), [&](const char* name) {
        return rueda::launcher::find_variable(environment, name);
      });
    }
    if (!found.ok()) options = found;
  }
  if (options.ok() && options.value().action != Options::Action::kPrintText) {
    const auto base = rueda::launcher::base_environment(environment, options.value());
    for (std::string& line : rueda::launcher::misspelled_settings(base))
      options.value().notes.push_back(std::move(line));
  }
  if (!options.ok()) {
    std::fprintf(stderr, "ruedarun: %s\nruedarun: ruedarun --help lists all options\n",
                 options.status().message().c_str());
    return rueda::launcher::kUsageError;
  }
  for (const std::string& note : options.value().notes)
    std::fprintf(stderr, "ruedarun: note: %s\n", note.c_str());
  switch (options.value().action) {
    case Options::Action::kPrintText: std::fputs(options.value().text.c_str(), stdout); return 0;
    case Options::Action::kCheckBuild:
      std::fputs(rueda::launcher::check_build_text().c_str(), stdout);
      return 0;
    case Options::Action::kPrintConfig: return print_config(options.value(), environment);
    case Options::Action::kRun: break;
  }
  return rueda::launcher::run_driver(options.value(), environment, RUEDA_LAUNCHER_VERSION);
}

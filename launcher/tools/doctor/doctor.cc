#include "launcher/tools/doctor/doctor.h"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "launcher/command/options.h"
#include "launcher/tools/doctor/findings.h"

namespace rueda::doctor {
namespace {

constexpr const char* kUsage =
    "Usage: rueda doctor                    this host: what was found, and what to do\n"
    "       rueda doctor --json             the same as one line of JSON\n"
    "       rueda doctor --merge FILE...    hosts compared: files with such lines, - for stdin, as "
    "in\n"
    "                                       `srun rueda doctor --json | rueda doctor --merge -`\n"
    "Exit code: 0, or 1 when no job can start on a host.\n";

int exit_code(Level level) { return level == Level::kBlocker ? 1 : 0; }

int merge(const std::vector<std::string>& files) {
  std::vector<Report> reports;
  for (const std::string& name : files) {
    std::ifstream file;
    if (name != "-") file.open(name);
    std::istream& in = name == "-" ? std::cin : file;
    if (!in) {
      std::fprintf(stderr, "rueda: %s cannot be read\n", name.c_str());
      return launcher::kUsageError;
    }
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      if (line.empty()) continue;
      auto report = from_json(line);
      if (!report.ok()) {
        std::fprintf(stderr, "rueda: %s:%d: %s\n", name.c_str(), number,
                     report.status().message().c_str());
        return launcher::kUsageError;
      }
      reports.push_back(std::move(report).value());
    }
  }
  const std::vector<Finding> differences = compare(reports);
  std::fputs(as_text(reports, differences).c_str(), stdout);
  Level level = worst(differences);
  for (const Report& report : reports) level = std::max(level, worst(report.findings));
  return exit_code(level);
}

}  // namespace

int run_doctor(const std::vector<std::string>& arguments) {
  if (arguments.size() > 1 && arguments[0] == "--merge")
    return merge({arguments.begin() + 1, arguments.end()});
  const bool json = arguments.size() == 1 && arguments[0] == "--json";
  if (!arguments.empty() && !json) {
    const bool asked = arguments[0] == "--help" || arguments[0] == "-h";
    std::fputs(kUsage, asked ? stdout : stderr);
    return asked ? 0 : launcher::kUsageError;
  }
  const Report report = examine(look_at_this_machine());
  std::printf("%s%s", json ? as_json(report).c_str() : as_text(report).c_str(), json ? "\n" : "");
  return exit_code(worst(report.findings));
}

}  // namespace rueda::doctor

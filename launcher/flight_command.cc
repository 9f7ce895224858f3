#include "launcher/flight_command.h"

#include <cstdio>

#include "launcher/options.h"
#include "launcher/recorder_files.h"
#include "launcher/status_socket.h"

namespace rueda::launcher {
namespace {

constexpr char kExplainUsage[] =
    "Usage: rueda explain FOLDER\n\n"
    "Reads the flight recorders' files of a job and says what each rank did last, where the ranks' ways\n"
    "part, and who waited for whom. The files are written with ruedarun --flight-recorder FOLDER when a\n"
    "rank fails or ruedarun gets SIGUSR2, and with --stall-policy dump when one hangs.\n";
constexpr char kStatusUsage[] =
    "Usage: rueda status [JOB] [--json]\n\n"
    "Shows the ranks of a running job on this host: how many operations each has submitted, its last one,\n"
    "who waits for whom. Without JOB: the only job of this user.\n";

bool is_help(const std::vector<std::string>& arguments) {
  return arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h");
}

int fail(const std::string& text, int code) {
  std::fprintf(stderr, "rueda: %s\n", text.c_str());
  return code;
}

}  // namespace

int run_explain(const std::vector<std::string>& arguments) {
  if (is_help(arguments)) return std::fputs(kExplainUsage, stdout), 0;
  if (arguments.size() != 1) return std::fputs(kExplainUsage, stderr), kUsageError;
  const auto files = read_flight_files(arguments[0]);
  if (!files.ok()) return fail(files.status().message(), 1);
  for (const std::string& problem : files.value().problems) fail(problem, 1);
  for (const std::string& line : explain(files.value().ranks, files.value().now_ns))
    std::puts(line.c_str());
  return files.value().ranks.empty() ? 1 : 0;
}

int run_status(const std::vector<std::string>& arguments) {
  if (is_help(arguments)) return std::fputs(kStatusUsage, stdout), 0;
  bool json = false;
  std::string job;
  for (const std::string& argument : arguments) {
    if (argument == "--json") {
      json = true;
    } else if (job.empty() && !argument.empty() && argument[0] != '-') {
      job = argument;
    } else {
      return std::fputs(kStatusUsage, stderr), kUsageError;
    }
  }
  if (job.empty()) {
    const std::vector<std::string> jobs = running_jobs();
    if (jobs.empty()) return fail("no job of this user runs on this host", 1);
    if (jobs.size() > 1) {
      std::string text = "several jobs run; say which one: rueda status JOB";
      for (const std::string& one : jobs) text += "\n  " + one;
      return fail(text, 1);
    }
    job = jobs.front();
  }
  const auto answer = ask_status(job);
  if (!answer.ok()) return fail(answer.status().message(), 1);
  const size_t cut = answer.value().find('\x1e');
  if (cut == std::string::npos) return fail("the answer was cut off", 1);
  const std::string text = json ? answer.value().substr(0, cut) : answer.value().substr(cut + 1);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace rueda::launcher

#include "launcher/tools/flight_command.h"

#include <unistd.h>

#include <cstdio>

#include "collectives/base/printable_lines.h"
#include "launcher/command/options.h"
#include "launcher/observe/recorder_files.h"
#include "launcher/observe/status_report.h"
#include "launcher/observe/status_socket.h"

namespace rueda::launcher {
namespace {

constexpr char kExplainUsage[] =
    "Usage: rueda explain FOLDER\n\n"
    "Reads the flight recorders' files of a job and says what each rank did last, where the ranks' "
    "ways\n"
    "part, and who waited for whom. The files are written with ruedarun --flight-recorder FOLDER "
    "when a\n"
    "rank fails or ruedarun gets SIGUSR2, and with --stall-policy dump when one hangs.\n";
constexpr char kStatusUsage[] =
    "Usage: rueda status [JOB] [--json]\n\n"
    "Shows the ranks of a running job: how many operations each has submitted, its last one, who "
    "waits\n"
    "for whom. On the host where ruedarun runs: of all hosts; elsewhere: of that host. Without "
    "JOB: the\n"
    "only job of this user.\n";
constexpr char kDrainUsage[] =
    "Usage: rueda drain [JOB]\n"
    "       rueda drain [JOB] HOST\n\n"
    "Asks a running job to end in order: rueda.should_stop() becomes true at the same step on all "
    "ranks,\n"
    "which save and leave. Exit code 1: no rank has called should_stop() yet, so none would hear "
    "it.\n"
    "With HOST, as an elastic job names it: its ranks leave at their next commit, the others go "
    "on,\n"
    "and the host is not used before it has been off the job's list of hosts. Ask where ruedarun\n"
    "runs.\n"
    "JOB has 16 hexadecimal digits. Without it: the only job of this user.\n";

constexpr size_t kMostHostName = 200;  // of a question (status_socket.cc)

bool is_help(const std::vector<std::string>& arguments) {
  return arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h");
}

int fail(const std::string& text, int code) {
  std::fprintf(stderr, "rueda: %s\n", printable_lines(text).c_str());
  return code;
}

}  // namespace

std::string only_job(const std::string& command, const std::string& more) {
  const std::vector<RunningJob> jobs = running_jobs();
  if (jobs.size() == 1) return jobs.front().id;
  std::string text =
      geteuid() == 0 ? "no job runs on this host" : "no job of this user runs on this host";
  if (!jobs.empty()) text = "several jobs run; say which one: rueda " + command + " JOB" + more;
  for (const RunningJob& one : jobs) {
    const auto title = ask_job(one.id, std::string(kTitleQuestion));
    text += "\n  " + one.id +
            (one.user == geteuid() ? "" : " of user " + std::to_string(one.user)) + "  " +
            (title.ok() ? title.value() : title.status().message());
  }
  fail(text, 1);
  return "";
}

int run_explain(const std::vector<std::string>& arguments) {
  if (is_help(arguments)) return std::fputs(kExplainUsage, stdout), 0;
  if (arguments.size() != 1) return std::fputs(kExplainUsage, stderr), kUsageError;
  const auto files = read_flight_files(arguments[0]);
  if (!files.ok()) return fail(files.status().message(), 1);
  for (const std::string& problem : files.value().problems) fail(problem, 1);
  for (const std::string& line : explain(files.value().ranks, files.value().now_ns))
    std::puts(printable_lines(line).c_str());
  return files.value().ranks.empty() ? 1 : 0;
}

namespace {

int drain_host(const std::string& job, const std::string& host) {
  const auto answer = ask_job(job, std::string(kDrainHost) + host);
  if (!answer.ok()) return fail(answer.status().message(), 1);
  const auto drained = read_drain_answer(answer.value());
  if (!drained) return fail("the answer was cut off", 1);
  if (!drained->done) return fail(drained->text, 1);
  std::puts(printable_lines(drained->text).c_str());
  return 0;
}

}  // namespace

int run_drain(const std::vector<std::string>& arguments) {
  if (is_help(arguments)) return std::fputs(kDrainUsage, stdout), 0;
  std::string job, host;
  bool fits = true;
  for (const std::string& word : arguments) {
    std::string& taker = is_job_id(word) ? job : host;
    fits = fits && taker.empty() && !word.empty() && !word.starts_with("-") &&
           word.size() <= kMostHostName && word.find('\n') == std::string::npos;
    taker = word;
  }
  if (!fits) return std::fputs(kDrainUsage, stderr), kUsageError;
  if (job.empty()) job = only_job("drain", host.empty() ? "" : " " + printable_lines(host));
  if (job.empty()) return 1;
  if (!host.empty()) return drain_host(job, host);
  const auto answer = ask_job(job, "drain");
  if (!answer.ok()) return fail(answer.status().message(), 1);
  int asked = 0, ranks = 0;
  if (std::sscanf(answer.value().c_str(), "%d %d", &asked, &ranks) != 2)
    return fail("the answer was cut off", 1);
  if (asked == 0) {
    return fail(
        "none of the " + std::to_string(ranks) +
            " ranks listens: none has called "
            "rueda.should_stop() yet (RUEDA_PREEMPTION_SIGNAL); to end the job all the same, send "
            "SIGTERM to ruedarun",
        1);
  }
  std::printf("asked %d of %d ranks; all stop at the same step\n", asked, ranks);
  return 0;
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
    job = only_job("status");
    if (job.empty()) return 1;
  }
  const auto answer = ask_job(job, "status");
  if (!answer.ok()) return fail(answer.status().message(), 1);
  const size_t cut = answer.value().find(kStatusCut);
  if (cut == std::string::npos) return fail("the answer was cut off", 1);
  const std::string text = json ? answer.value().substr(0, cut) : answer.value().substr(cut + 1);
  std::fputs(printable_lines(text).c_str(), stdout);
  return 0;
}

}  // namespace rueda::launcher

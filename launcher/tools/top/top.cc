#include "launcher/tools/top/top.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstring>
#include <thread>

#include "collectives/base/printable_lines.h"
#include "launcher/command/options.h"
#include "launcher/observe/status_socket.h"
#include "launcher/observe/vitals_json.h"
#include "launcher/tools/flight_command.h"
#include "launcher/tools/top/screen.h"
#include "launcher/tools/top/table.h"

namespace rueda::top {
namespace {

constexpr char kUsage[] =
    "Usage: rueda top [JOB] [--once] [--json]\n\n"
    "Shows a running job each second: which rank the others wait for and why; of each rank its "
    "steps and\n"
    "their time, how late it is, how much of its time it waits, GB/s, CPU and memory. On the host "
    "where\n"
    "ruedarun runs: of all hosts; elsewhere: of that host. Without JOB: the only job of this "
    "user.\n\n"
    "  --once   one look, of a second, as text\n"
    "  --json   the same as an object of JSON in a line; without --once one each second\n\n"
    "Keys: arrows choose, enter shows a rank's last operations and stacks, s sorts, h folds by "
    "host, q quits.\n"
    "LATE: of the time of the others on its host, what they slept until this rank came. WAIT, "
    "DATA, CORE:\n"
    "of its own time, waiting for operations, for data, for a core. NO_COLOR is respected.\n";

int fail(const std::string& text) {
  std::fprintf(stderr, "rueda: %s\n", printable_lines(text).c_str());
  return 1;
}

// Takes one more look; false and said why: it cannot.
bool take(const std::string& job, Rates* rates) {
  const auto answer = launcher::ask_job(job, std::string(launcher::kVitalsQuestion));
  if (!answer.ok()) return fail(answer.status().message()), false;
  const auto sample = parse_sample(answer.value());
  if (!sample.ok()) return fail(sample.status().message()), false;
  rates->take(sample.value());
  return true;
}

void print(const Rates& rates) {
  std::setlocale(LC_ALL, "");
  Look look;
  look.utf8 = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) look.columns = size.ws_col;
  for (const std::string& line : heading(rates, look)) std::puts(line.c_str());
  std::puts(table_head(look).c_str());
  for (const Row& row : rates.rows()) std::puts(table_row(row, look).c_str());
}

}  // namespace

int run_top(const std::vector<std::string>& arguments) {
  bool once = false, json = false;
  std::string job;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") return std::fputs(kUsage, stdout), 0;
    if (argument == "--once") {
      once = true;
    } else if (argument == "--json") {
      json = true;
    } else if (job.empty() && !argument.empty() && argument[0] != '-') {
      job = argument;
    } else {
      return std::fputs(kUsage, stderr), launcher::kUsageError;
    }
  }
  if (job.empty()) job = launcher::only_job("top");
  if (job.empty()) return 1;
  const bool interactive = !once && !json && isatty(STDOUT_FILENO) && isatty(STDIN_FILENO);
  if (interactive) {
    if (const auto there = launcher::ask_job(job, std::string(launcher::kTitleQuestion));
        !there.ok())
      return fail(there.status().message());
    if (const int shown = show(job); shown >= 0) return shown;
    std::fputs("rueda: this terminal is not known here (TERM); one look as text instead\n", stderr);
  }
  Rates rates;
  if (!take(job, &rates)) return 1;
  for (;;) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    if (!take(job, &rates)) return 1;
    if (json)
      std::printf("%s\n", rates_json(rates).c_str());
    else
      print(rates);
    std::fflush(stdout);
    if (once || !json) return 0;
  }
}

}  // namespace rueda::top

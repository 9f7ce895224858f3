#include "launcher/tools/bench/bench.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "launcher/command/options.h"
#include "launcher/tools/bench/attention_bench.h"
#include "launcher/tools/bench/librueda.h"
#include "launcher/tools/bench/measure.h"
#include "launcher/tools/bench/meet.h"
#include "launcher/tools/bench/options.h"
#include "launcher/tools/bench/report.h"
#include "launcher/tools/bench/rueda_subject.h"
#include "launcher/tools/bench/write.h"

namespace rueda::bench {
namespace {

int fail(const Status& status) {
  std::fprintf(stderr, "rueda bench: %s\n", status.message().c_str());
  return status.code() == Code::kInvalidArgument ? launcher::kUsageError : 1;
}

// Replaces this process by `ruedarun -np N rueda bench ...`; returns only when that is impossible.
int start_job(const BenchOptions& options, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = job_command(options.ranks, arguments);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv.front(), argv.data());
  return fail(unavailable("cannot start " + words.front() + ": " + std::strerror(errno)));
}

Result<BenchReport> measure_all(const LibRueda& api, rueda_context* context,
                                const BenchOptions& options) {
  RUEDA_ASSIGN_OR_RETURN(Meeting meeting, meet(api, context, options.meeting));
  if (options.pin) pin_to_core(meeting.rank());
  RuedaSubject subject(api, context, options.prepare);
  BenchReport report{api.version(), meeting.size(), {}};
  for (const Case& c : options.cases) {
    RUEDA_ASSIGN_OR_RETURN(Row row, measure(&subject, &meeting, c, options.effort));
    report.rows.push_back(std::move(row));
  }
  return report;
}

Status run_rank(const BenchOptions& options) {
  RUEDA_ASSIGN_OR_RETURN(const LibRueda api, open_librueda());
  rueda_context* raw = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  RUEDA_RETURN_IF_ERROR(status_of(api.init(nullptr, &raw, &error), error));
  const std::unique_ptr<rueda_context, decltype(api.context_release)> context(raw,
                                                                              api.context_release);
  if (options.ranks_given && options.ranks != api.size(raw))
    return invalid_argument("--np " + std::to_string(options.ranks) + ": this job has " +
                            std::to_string(api.size(raw)) + " ranks");
  RUEDA_ASSIGN_OR_RETURN(const BenchReport report, measure_all(api, raw, options));
  if (api.rank(raw) != 0) return {};
  if (options.json != "-") std::fputs(table_of(report).c_str(), stdout);
  if (!options.json.empty()) RUEDA_RETURN_IF_ERROR(write_text(options.json, json_of(report)));
  const auto wrong = std::find_if(report.rows.begin(), report.rows.end(),
                                  [](const Row& row) { return row.wrong != 0; });
  if (wrong == report.rows.end()) return {};
  return internal_error(text_of(wrong->c) + ": " + std::to_string(wrong->wrong) +
                        " elements of the result are wrong");
}

}  // namespace

int run_bench(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments.front() == "attention")
    return run_attention_bench({arguments.begin() + 1, arguments.end()});
  const auto options = parse_bench_options(arguments);
  if (!options.ok()) {
    fail(options.status());
    std::fputs("rueda bench --help lists all options\n", stderr);
    return launcher::kUsageError;
  }
  if (!options.value().help.empty()) {
    std::fputs(options.value().help.c_str(), stdout);
    return 0;
  }
  if (!is_a_rank()) return start_job(options.value(), arguments);
  const Status status = run_rank(options.value());
  return status.ok() ? 0 : fail(status);
}

}  // namespace rueda::bench

#include "launcher/tool/bench/bench.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "launcher/options.h"
#include "launcher/tool/bench/librueda.h"
#include "launcher/tool/bench/measure.h"
#include "launcher/tool/bench/options.h"
#include "launcher/tool/bench/report.h"
#include "launcher/tool/bench/rueda_subject.h"

namespace rueda::bench {
namespace {

int fail(const Status& status) {
  std::fprintf(stderr, "rueda bench: %s\n", status.message().c_str());
  return status.code() == Code::kInvalidArgument ? launcher::kUsageError : 1;
}

// Variables by which a launcher tells a process that it is one of several.
bool is_a_rank() {
  for (const char* name : {"RUEDA_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

// Replaces this process by `ruedarun -np N rueda bench ...`; returns only when that is impossible.
int start_job(const BenchOptions& options, const std::vector<std::string>& arguments) {
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string ruedarun = std::filesystem::path(self).parent_path() / "ruedarun";
  std::vector<std::string> words = {ruedarun, "-np",   std::to_string(options.ranks),
                                    "--no-prefix", self, "bench"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(ruedarun.c_str(), argv.data());
  return fail(unavailable("cannot start " + ruedarun + ": " + std::strerror(errno)));
}

// Rank 0's meeting file on every rank; its name is gone as soon as all have opened it.
Result<Meeting> meet(const LibRueda& api, rueda_context* context, const std::string& given) {
  const int rank = api.rank(context), size = api.size(context);
  if (!given.empty()) return Meeting::open(given, rank, size);
  if (api.local_size(context) != size)
    return Status{Code::kUnimplemented, "the ranks must be on one machine"};
  char name[64] = {};
  if (rank == 0) {
    std::strcpy(name, "/dev/shm/rueda-bench-XXXXXX");
    const int file = mkostemp(name, O_CLOEXEC);
    if (file < 0) name[0] = 0;  // open() then fails on every rank
    else close(file);
  }
  const auto run = [&](int32_t kind, const char* label, void* data, int64_t bytes) {
    rueda_op op = RUEDA_OP_INIT;
    op.kind = kind;
    op.name = label;
    op.dtype = RUEDA_UINT8;
    op.input = op.output = data;
    op.shape = &bytes;
    op.ndim = kind == RUEDA_BARRIER ? 0 : 1;
    rueda_error error = RUEDA_ERROR_INIT;
    return status_of(api.run(context, &op, &error), error);
  };
  Status status = run(RUEDA_BROADCAST, "bench.meeting", name, sizeof(name));
  auto meeting = Meeting::open(name, rank, size);
  if (status.ok()) status = run(RUEDA_BARRIER, "bench.met", nullptr, 0);
  if (rank == 0) unlink(name);
  RUEDA_RETURN_IF_ERROR(status);
  return meeting;
}

Status write_json(const std::string& path, const std::string& text) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "we");
  if (file == nullptr) return unavailable("cannot write " + path + ": " + std::strerror(errno));
  const bool written = std::fputs(text.c_str(), file) >= 0;
  const bool closed = file == stdout ? std::fflush(file) == 0 : std::fclose(file) == 0;
  return written && closed ? Status{} : unavailable("cannot write " + path);
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
  const std::unique_ptr<rueda_context, decltype(api.shutdown)> context(raw, api.shutdown);
  if (options.ranks_given && options.ranks != api.size(raw))
    return invalid_argument("--np " + std::to_string(options.ranks) + ": this job has " +
                            std::to_string(api.size(raw)) + " ranks");
  RUEDA_ASSIGN_OR_RETURN(const BenchReport report, measure_all(api, raw, options));
  if (api.rank(raw) != 0) return {};
  if (options.json != "-") std::fputs(table_of(report).c_str(), stdout);
  if (!options.json.empty()) RUEDA_RETURN_IF_ERROR(write_json(options.json, json_of(report)));
  const auto wrong = std::find_if(report.rows.begin(), report.rows.end(),
                                  [](const Row& row) { return row.wrong != 0; });
  if (wrong == report.rows.end()) return {};
  return internal_error(text_of(wrong->c) + ": " + std::to_string(wrong->wrong) +
                        " elements of the result are wrong");
}

}  // namespace

int run_bench(const std::vector<std::string>& arguments) {
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

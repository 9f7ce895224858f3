// Jobs of several ranks: what spreading costs (A11) and what waiting for messages costs (A9).
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "launcher/tools/bench/attention_bench.h"
#include "launcher/tools/bench/attention_problem.h"
#include "launcher/tools/bench/core_peak.h"
#include "launcher/tools/bench/measure.h"
#include "launcher/tools/bench/meet.h"

namespace rueda::bench {
namespace {

// What rank 0 prints, medians over the job's iterations.
struct JobResult {
  double wall = 0;   // seconds until the slowest rank has ended
  double cpu = 0;    // CPU seconds of all ranks
  double link = 0;   // seconds in which the call's bytes cross the link with nothing else to do
  double bytes = 0;  // that a rank sends
  double ns_before = 0, ns_after = 0;
};

Result<JobResult> run_job(int ranks, std::vector<std::string> arguments,
                          const std::vector<std::string>& variables) {
  arguments.insert(arguments.begin(), {"attention", "--as-rank"});
  std::vector<std::string> words = job_command(ranks, arguments), environment = variables;
  for (char** one = environ; *one != nullptr; ++one) environment.emplace_back(*one);
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (std::string& text : strings) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  };
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return unavailable(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  pid_t child = 0;
  const int failed = posix_spawn(&child, words.front().c_str(), &actions, nullptr,
                                 pointers(words).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  std::FILE* from = fdopen(out[0], "r");
  JobResult r;
  char line[256];
  int found = 0;
  while (failed == 0 && std::fgets(line, sizeof(line), from) != nullptr) {
    if (found == 6) continue;
    found = std::sscanf(line, "attention-job %lf %lf %lf %lf %lf %lf", &r.wall, &r.cpu, &r.link,
                        &r.bytes, &r.ns_before, &r.ns_after);
  }
  std::fclose(from);
  if (failed != 0)
    return unavailable("cannot start " + words.front() + ": " + std::strerror(failed));
  waitpid(child, nullptr, 0);
  if (found != 6)
    return unavailable("a job of " + std::to_string(ranks) + " ranks gave no figures");
  return r;
}

std::vector<std::string> arguments_of(const AttentionShape& shape, bool backward, int rounds) {
  std::vector<std::string> words = {
      "--tokens", std::to_string(shape.tokens),   "--heads",  std::to_string(shape.heads),
      "--dim",    std::to_string(shape.head_dim), "--rounds", std::to_string(rounds)};
  if (shape.causal) words.emplace_back("--causal");
  if (backward) words.emplace_back("--backward");
  return words;
}

Status spread_cost(const AttentionShape& shape, AttentionProblem* whole, bool backward, int ranks,
                   const AttentionOptions& options, std::vector<Figure>* figures) {
  const int rounds = options.quick ? 1 : std::max(3, options.rounds);
  const int calls = shape.tokens > 20000 ? 1 : 3;  // of a round
  std::vector<double> ratios;
  std::string state;
  for (int round = 0; round < rounds; ++round) {
    RUEDA_RETURN_IF_ERROR(whole->run(backward));
    std::vector<double> times;
    for (int i = 0; i < calls; ++i) {
      whole->make_dirty();
      const double begin = cpu_seconds();
      RUEDA_RETURN_IF_ERROR(whole->run(backward));
      times.push_back(cpu_seconds() - begin);
    }
    const double alone = spread_of(times).median;
    RUEDA_ASSIGN_OR_RETURN(const JobResult job,
                           run_job(ranks, arguments_of(shape, backward, calls), {}));
    ratios.push_back(job.cpu / alone);
    state = state_of(job.ns_before, job.ns_after);
  }
  figures->push_back(at_most("A11",
                             std::string(backward ? "forward+backward" : "forward") +
                                 " causal zigzag n " + std::to_string(shape.tokens) + " on " +
                                 std::to_string(ranks) + " ranks, CPU time over one rank's",
                             spread_of(ratios), 1.10, "x", state));
  return {};
}

// All ranks' CPU time over that of one rank with the whole sequence. Arithmetic grows with the
// square of the sequence, messages with the sequence: hence two lengths with the same messages, and
// ranks with as many tokens as they have in the field.
Status spread_costs(const LibRueda& api, rueda_context* context, const AttentionOptions& options,
                    std::vector<Figure>* figures) {
  AttentionShape small, large;
  small.tokens = options.quick ? 512 : 4096;
  small.heads = options.quick ? 1 : 4;
  large.tokens = 16384;
  large.heads = 1;
  const auto spread = [&](AttentionShape shape, const std::vector<int>& worlds) -> Status {
    shape.causal = true;
    RUEDA_ASSIGN_OR_RETURN(const auto whole, AttentionProblem::make(api, context, shape));
    for (const bool backward : {false, true}) {
      for (const int ranks : worlds)
        RUEDA_RETURN_IF_ERROR(spread_cost(shape, whole.get(), backward, ranks, options, figures));
    }
    return {};
  };
  RUEDA_RETURN_IF_ERROR(spread(small, {2, 4, 8}));
  if (options.quick) return {};
  RUEDA_RETURN_IF_ERROR(spread(large, {2, 4, 8}));
  for (const int ranks : {4, 8}) {
    large.tokens = 8192 * ranks;  // 2: the case above
    RUEDA_RETURN_IF_ERROR(spread(large, {ranks}));
  }
  return {};
}

// On a link on which the messages take as long as the arithmetic; each pass by itself, since their
// ratios of bytes to arithmetic differ: at one rate for both, forward would wait for the link and
// backward for the arithmetic, in whatever order messages go.
Status overlap(const AttentionOptions& options, std::vector<Figure>* figures) {
  AttentionShape shape;
  shape.tokens = options.quick ? 1024 : 16384;
  shape.heads = options.quick ? 1 : 2;
  const int rounds = options.quick ? 1 : 3;
  for (const bool backward : {false, true}) {
    std::vector<double> shares;
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::string> words = arguments_of(shape, backward, 3);
      if (backward) words.emplace_back("--forward-untimed");
      RUEDA_ASSIGN_OR_RETURN(const JobResult free, run_job(2, words, {}));
      const double rate = free.bytes / free.wall;
      words.emplace_back("--link");
      RUEDA_ASSIGN_OR_RETURN(
          const JobResult slow,
          run_job(2, words,
                  {"RUEDA_TRANSPORT=tcp",
                   "RUEDA_TCP_RATE_LIMIT=" + std::to_string(static_cast<int64_t>(rate))}));
      shares.push_back((free.wall + slow.link - slow.wall) / std::min(free.wall, slow.link));
    }
    figures->push_back(at_least(
        "A9",
        std::string(backward ? "backward" : "forward") + " n " + std::to_string(shape.tokens) +
            " on 2 ranks, link as slow as the arithmetic: share that is hidden",
        spread_of(shares), 0.90, ""));
  }
  return {};
}

// The call's bytes to the neighbour and as many back, nothing else.
Status cross_link(const LibRueda& api, rueda_context* context, int64_t bytes) {
  std::vector<uint8_t> data(static_cast<size_t>(2 * bytes), 1);
  const int64_t shape = 2 * bytes;
  rueda_op op = RUEDA_OP_INIT;
  op.kind = RUEDA_ALLTOALL;
  op.name = "bench.link";
  op.dtype = RUEDA_UINT8;
  op.input = data.data();
  op.shape = &shape;
  op.ndim = 1;
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_request* request = nullptr;
  RUEDA_RETURN_IF_ERROR(status_of(api.start(context, &op, 1, 0, &request, &error), error));
  const Status status = status_of(api.request_wait(request, -1, &error), error);
  api.request_release(request);
  return status;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Status job_figures(const LibRueda& api, rueda_context* context, const AttentionOptions& options,
                   std::vector<Figure>* figures) {
  if (options.wants("A9")) RUEDA_RETURN_IF_ERROR(overlap(options, figures));
  if (options.wants("A11")) RUEDA_RETURN_IF_ERROR(spread_costs(api, context, options, figures));
  return {};
}

Status run_attention_rank(const LibRueda& api, rueda_context* context,
                          const AttentionOptions& options) {
  RUEDA_ASSIGN_OR_RETURN(Meeting meeting, meet(api, context, ""));
  pin_to_core(meeting.rank());
  AttentionShape shape;
  shape.tokens = options.tokens;
  shape.heads = options.heads;
  shape.head_dim = options.head_dim;
  shape.causal = shape.zigzag = options.causal;
  RUEDA_ASSIGN_OR_RETURN(const auto problem, AttentionProblem::make(api, context, shape));
  const int64_t bytes = problem->bytes_sent(options.backward) -
                        (options.forward_untimed ? problem->bytes_sent(false) : 0);
  JobResult result;
  result.ns_before = meeting.one_way_ns();
  std::vector<double> walls, cpus, links;
  for (int round = -1; round < options.rounds; ++round) {
    problem->make_dirty();
    if (options.forward_untimed) RUEDA_RETURN_IF_ERROR(problem->run_forward(true));
    meeting.barrier();
    const double cpu = cpu_seconds(), wall = seconds();
    RUEDA_RETURN_IF_ERROR(options.forward_untimed ? problem->run_backward()
                                                  : problem->run(options.backward));
    meeting.put_sample(0, seconds() - wall);
    meeting.put_sample(1, cpu_seconds() - cpu);
    meeting.barrier();
    if (round >= 0) {
      walls.push_back(meeting.slowest(0));
      cpus.push_back(meeting.total(1));
    }
    meeting.barrier();
    if (!options.link) continue;
    const double begin = seconds();
    RUEDA_RETURN_IF_ERROR(cross_link(api, context, bytes));
    meeting.put_sample(2, seconds() - begin);
    meeting.barrier();
    if (round >= 0) links.push_back(meeting.slowest(2));
    meeting.barrier();
  }
  result.ns_after = meeting.one_way_ns();
  if (meeting.rank() == 0) {
    std::printf("attention-job %.9f %.9f %.9f %.0f %.1f %.1f\n", spread_of(walls).median,
                spread_of(cpus).median, spread_of(links).median, static_cast<double>(bytes),
                result.ns_before, result.ns_after);
    std::fflush(stdout);
  }
  return {};
}

}  // namespace rueda::bench

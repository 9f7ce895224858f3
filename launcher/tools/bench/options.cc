#include "launcher/tools/bench/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "launcher/tools/bench/gradient_sets.h"

namespace rueda::bench {
namespace {

struct Raw {
  std::vector<std::string> ops = {"allreduce"}, dtypes = {"f32"}, memory = {"private", "arena"};
  std::vector<std::string> bytes = {"4", "256", "4K", "64K", "1M", "16M", "64M"};
  std::vector<std::string> gradients, cases;
};

void describe(CLI::App* app, Raw* raw, BenchOptions* options) {
  app->name("rueda bench");
  app->description(
      "How fast collectives are on this machine, and which part of its memory's speed that is.\n"
      "Each is a persistent request of fixed size into the caller's memory; every result is "
      "checked.\n\n"
      "  rueda bench                        two ranks on this machine\n"
      "  ruedarun -np 4 rueda bench         the ranks of a job\n"
      "  rueda bench attention              the figures of distributed attention (--help)\n"
      "  rueda bench --op allgather --bytes 1M,64M --json result.json");
  app->add_option("-n,--np", options->ranks, "number of ranks (2); with ruedarun -np it is given")
      ->check(CLI::Range(1, kMaxMeetingRanks));
  const auto list = [&](const char* name, std::vector<std::string>* into, const std::string& what) {
    return app->add_option(name, *into, what)->delimiter(',')->allow_extra_args(false);
  };
  list("--op", &raw->ops, "allreduce, allgather, reducescatter, broadcast, alltoall (allreduce)");
  list("--dtype", &raw->dtypes, "f32, f16, bf16, i32, f64 (f32)");
  list("--memory", &raw->memory,
       "of inputs and outputs: private, arena: memory that the ranks share (both)");
  list("--bytes", &raw->bytes, "of a rank's larger buffer: 4, 64K, 1M (4 to 64M)");
  list("--gradients", &raw->gradients,
       "also all gradients of a model at once: " + gradient_set_names());
  list("--case", &raw->cases,
       "exactly these instead: OPERATION:DTYPE:MEMORY:BYTES, gradients:f32:private:resnet50,\n"
       "limit:f32:private:64M (the machine's own speed)");
  app->add_option("--seconds", options->effort.seconds, "at most, for each case (1)")
      ->check(CLI::Range(0.01, 3600.0));
  app->add_option("--iterations", options->effort.iterations,
                  "operations per case (1000 up to 64K, 40 up to 4M, 7 above)")
      ->check(CLI::Range(1, kMaxSamples));
  app->add_flag("!--no-prepare", options->prepare,
                "make every operation anew: no persistent requests");
  app->add_flag("!--no-pin", options->pin, "do not bind each rank to a core");
  app->add_flag("!--no-limit", options->limit, "leave out the machine's own speed");
  app->add_option("--json", options->json, "write the result here too; - for standard output");
  app->add_option("--meeting", options->meeting, "a fresh file on which the ranks meet")->group("");
}

// Every combination, biggest last, each size preceded by the machine's limit of that size.
Status combine(const Raw& raw, BenchOptions* options) {
  for (const std::string& text : raw.cases) {
    RUEDA_ASSIGN_OR_RETURN(const Case c, parse_case(text));
    options->cases.push_back(c);
  }
  if (!raw.cases.empty()) return {};
  for (const std::string& op : raw.ops) {
    RUEDA_ASSIGN_OR_RETURN(const Operation operation, parse_operation(op));
    if (operation == Operation::kGradients || operation == Operation::kLimit)
      return invalid_argument("--op " + op + ": use --gradients, or --case");
    for (const std::string& dtype : raw.dtypes) {
      for (const std::string& memory : raw.memory) {
        for (const std::string& bytes : raw.bytes) {
          RUEDA_ASSIGN_OR_RETURN(const Case c,
                                 parse_case(op + ":" + dtype + ":" + memory + ":" + bytes));
          options->cases.push_back(c);
        }
      }
    }
  }
  for (const std::string& set : raw.gradients) {
    for (const std::string& memory : raw.memory) {
      RUEDA_ASSIGN_OR_RETURN(const Case c, parse_case("gradients:f32:" + memory + ":" + set));
      options->cases.push_back(c);
    }
  }
  return {};
}

// The limit is compared with what follows it, so it is measured next to it.
void add_limits(BenchOptions* options) {
  std::vector<Case> all;
  uint64_t last = 0;
  for (const Case& c : options->cases) {
    if (c.bytes >= (1 << 20) && c.bytes != last) {
      Case limit;
      limit.operation = Operation::kLimit;
      limit.bytes = c.bytes;
      all.push_back(limit);
    }
    last = c.bytes;
    all.push_back(c);
  }
  options->cases = std::move(all);
}

}  // namespace

Result<BenchOptions> parse_bench_options(const std::vector<std::string>& arguments) {
  CLI::App app;
  Raw raw;
  BenchOptions options;
  describe(&app, &raw, &options);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    for (std::string& word : reversed) {
      if (word == "-np") word = "--np";
    }
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    options.help = app.help();
    return options;
  } catch (const CLI::ParseError& error) {
    return invalid_argument(error.what());
  }
  options.ranks_given = app.count("--np") > 0;
  RUEDA_RETURN_IF_ERROR(combine(raw, &options));
  if (options.limit && raw.cases.empty()) add_limits(&options);
  return options;
}

}  // namespace rueda::bench

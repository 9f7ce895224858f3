#include "launcher/tools/bench/attention_bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "launcher/command/options.h"
#include "launcher/tools/bench/write.h"

namespace rueda::bench {
namespace {

// Figures that are right or wrong, not fast or slow: which test shows them.
std::vector<Figure> tested_figures() {
  const auto row = [](const char* id, const char* what, const char* where) {
    return Figure{id, what, where, "", Verdict::kShown, 0};
  };
  return {
      row("A1-A4", "exact results and gradients, any scores", "tests/attention, attention_test"),
      row("A5", "10,000 random plans cover every pair", "tests/attention, attention_plan_test"),
      row("A6", "transports' byte counters equal the plan", "tests/attention, attention_test"),
      row("A13,A15", "LongNet, Ulysses and hybrids, any heads",
          "attention_test, test_attention.py"),
      row("A16", "same bits in 20 runs with delays", "tests/attention, attention_test"),
      row("A17", "a rank killed in each step", "tests/attention, attention_faults_test"),
      row("A18", "call sites of other libraries", "tests/python/test_attention.py"),
  };
}

Status run(const AttentionOptions& options) {
  RUEDA_ASSIGN_OR_RETURN(const LibRueda api, open_librueda());
  if (api.attention_plan_create == nullptr || api.attention_forward == nullptr)
    return unavailable("librueda has no attention: it is of another version");
  rueda_context* raw = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  RUEDA_RETURN_IF_ERROR(status_of(api.init(nullptr, &raw, &error), error));
  const std::unique_ptr<rueda_context, decltype(api.context_release)> context(raw,
                                                                              api.context_release);
  if (options.as_rank) return run_attention_rank(api, raw, options);
  if (api.size(raw) != 1) {
    return invalid_argument(
        "rueda bench attention starts its ranks itself: call it without ruedarun");
  }
  std::vector<Figure> figures;
  RUEDA_RETURN_IF_ERROR(plan_figures(api, &figures));
  RUEDA_RETURN_IF_ERROR(job_figures(api, raw, options, &figures));
  RUEDA_RETURN_IF_ERROR(kernel_figures(api, raw, options, &figures));
  for (Figure& figure : tested_figures()) figures.push_back(std::move(figure));
  std::erase_if(figures, [&](const Figure& figure) { return !options.wants(figure.id); });
  std::stable_sort(figures.begin(), figures.end(), [](const Figure& a, const Figure& b) {
    return std::atoi(a.id.c_str() + 1) < std::atoi(b.id.c_str() + 1);
  });
  if (options.json != "-") {
    std::printf("rueda %s, attention\n%s", api.version(), table_of(figures).c_str());
    std::puts(
        "Shares and ratios: median of the rounds (least to greatest), from CPU time of one "
        "thread where\none core is meant; inputs are overwritten before every call. A figure "
        "without a goal names its test.");
  }
  return options.json.empty() ? Status{} : write_text(options.json, json_of(figures));
}

}  // namespace

bool AttentionOptions::wants(const std::string& id) const {
  return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& word) {
           return id == word || id.find(word + ",") != std::string::npos ||
                  id.find("," + word) != std::string::npos;
         });
}

Result<AttentionOptions> parse_attention_options(const std::vector<std::string>& arguments) {
  AttentionOptions options;
  CLI::App app;
  app.name("rueda bench attention");
  app.description(
      "The figures of docs/attention.md that are timed or counted, against this core's own peak "
      "and\n"
      "PyTorch's scaled_dot_product_attention; the others name their test.");
  app.add_option("--only", options.only, "these figures: A10,A14")->delimiter(',');
  app.add_option("--rounds", options.rounds, "of each measurement, in rotation (5)")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--quick", options.quick,
               "small sizes: does everything run? its figures mean nothing");
  app.add_option("--python", options.python, "a Python with PyTorch (python3); none: without it");
  app.add_option("--json", options.json, "write the figures here too; - for standard output");
  app.add_flag("--as-rank", options.as_rank)->group("");
  app.add_flag("--backward", options.backward)->group("");
  app.add_flag("--forward-untimed", options.forward_untimed)->group("");
  app.add_flag("--causal", options.causal)->group("");
  app.add_flag("--link", options.link)->group("");
  app.add_option("--tokens", options.tokens)->group("");
  app.add_option("--heads", options.heads)->group("");
  app.add_option("--dim", options.head_dim)->group("");
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    options.help = app.help();
  } catch (const CLI::ParseError& error) {
    return invalid_argument(error.what());
  }
  return options;
}

int run_attention_bench(const std::vector<std::string>& arguments) {
  const auto options = parse_attention_options(arguments);
  Status status = options.status();
  if (status.ok() && !options.value().help.empty()) {
    std::fputs(options.value().help.c_str(), stdout);
    return 0;
  }
  if (status.ok()) status = run(options.value());
  if (status.ok()) return 0;
  std::fprintf(stderr, "rueda bench attention: %s\n", status.message().c_str());
  return status.code() == Code::kInvalidArgument ? launcher::kUsageError : 1;
}

}  // namespace rueda::bench

// `rueda bench attention`: the figures A1 to A18 of docs/attention.md that are timed or counted.
#pragma once

#include <string>
#include <vector>

#include "launcher/tools/bench/figures.h"
#include "launcher/tools/bench/librueda.h"

namespace rueda::bench {

struct AttentionOptions {
  std::string help;               // not empty: print it and do nothing else
  std::vector<std::string> only;  // ids; empty: all
  int rounds = 5;
  bool quick = false;              // small sizes: does everything run?
  std::string python = "python3";  // with PyTorch; "none": without this peer
  std::string json;                // file, "-" for standard output
  // Of a rank of a job that the benchmark has started.
  bool as_rank = false, backward = false, causal = false, link = false;
  bool forward_untimed = false;  // with backward: only that is timed
  int64_t tokens = 0, heads = 1, head_dim = 64;

  bool wants(const std::string& id) const;
};
Result<AttentionOptions> parse_attention_options(const std::vector<std::string>& arguments);

// `arguments` without "rueda bench attention". The process's exit code, as run_bench.
int run_attention_bench(const std::vector<std::string>& arguments);

// A10, A10b, A14: one core.
Status kernel_figures(const LibRueda& api, rueda_context* context, const AttentionOptions& options,
                      std::vector<Figure>* figures);
// A6 to A8: what plans say.
Status plan_figures(const LibRueda& api, std::vector<Figure>* figures);
// A9, A11: jobs of several ranks.
Status job_figures(const LibRueda& api, rueda_context* context, const AttentionOptions& options,
                   std::vector<Figure>* figures);
// What a rank of such a job does; rank 0 prints one line.
Status run_attention_rank(const LibRueda& api, rueda_context* context,
                          const AttentionOptions& options);

}  // namespace rueda::bench

// One core: the local kernel against the core's own peak and against PyTorch. Each round measures
// the peak, rueda and PyTorch one after another, in rotated order; only values of the same round
// are compared.
#include <optional>

#include "launcher/tools/bench/attention_bench.h"
#include "launcher/tools/bench/attention_problem.h"
#include "launcher/tools/bench/core_peak.h"
#include "launcher/tools/bench/torch_peer.h"

namespace rueda::bench {
namespace {

constexpr const char* kPercent = " %";

std::string text_of(const AttentionShape& shape) {
  return std::string(shape.bf16 ? "bf16" : "f32") + " d" + std::to_string(shape.head_dim) + " n " +
         std::to_string(shape.tokens) + (shape.causal ? " causal" : "");
}

Result<double> seconds_of(AttentionProblem* problem, bool backward) {
  problem->make_dirty();
  const double begin = cpu_seconds();
  RUEDA_RETURN_IF_ERROR(problem->run(backward));
  return cpu_seconds() - begin;
}

struct Rounds {
  std::vector<double> forward_share, backward_share;  // of the peak, percent
  std::vector<double> forward_ratio, both_ratio;      // PyTorch's time over rueda's
  std::vector<double> forward_gflops;
};

class KernelBench {
 public:
  KernelBench(const LibRueda& api, rueda_context* context, const AttentionOptions& options,
              std::vector<Figure>* figures)
      : api_(api), context_(context), options_(options), figures_(figures) {}

  Status against_peak() {
    if (!options_.wants("A10")) return {};
    for (const bool wide : {false, true}) {
      AttentionShape shape;
      shape.tokens = options_.quick ? 256 : 4096;
      shape.heads = options_.quick ? 1 : 2;
      shape.head_dim = wide ? 128 : 64;
      RUEDA_ASSIGN_OR_RETURN(const Rounds r, rounds_of(shape, nullptr));
      const std::string more = rate(r);
      figures_->push_back(at_least("A10",
                                   "forward " + text_of(shape) + ", share of the core's peak",
                                   spread_of(r.forward_share), wide ? 82 : 75, kPercent, more));
      figures_->push_back(at_least("A10",
                                   "backward " + text_of(shape) + ", share of the core's peak",
                                   spread_of(r.backward_share), wide ? 72 : 65, kPercent));
    }
    return {};
  }

  Status against_torch() {
    if (!options_.wants("A10b") || options_.python == "none") return {};
    auto started = TorchPeer::start(options_.python);
    if (!started.ok()) {
      figures_->push_back({"A10b", "against PyTorch's scaled_dot_product_attention",
                           "not measured: " + started.status().message(), "", Verdict::kShown, 0});
      return {};
    }
    TorchPeer peer = std::move(started).value();
    for (const bool bf16 : {false, true}) {
      for (const AttentionShape& size : sizes()) {
        AttentionShape shape = size;
        shape.bf16 = bf16;
        RUEDA_ASSIGN_OR_RETURN(const Rounds r, rounds_of(shape, &peer));
        figures_->push_back(at_least("A10b",
                                     "forward " + text_of(shape) + ", over " + peer.version(),
                                     spread_of(r.forward_ratio), 1, "x", rate(r)));
        figures_->push_back(
            at_least("A10b", "forward+backward " + text_of(shape) + ", over " + peer.version(),
                     spread_of(r.both_ratio), 1, "x"));
      }
    }
    return {};
  }

  // Work follows the mask's density.
  Status sparse() {
    if (!options_.wants("A14")) return {};
    AttentionShape dense;
    dense.tokens = options_.quick ? 1024 : 16384;
    AttentionShape sparse = dense;
    sparse.block = 128;
    sparse.density = 0.1;
    RUEDA_ASSIGN_OR_RETURN(const auto all, AttentionProblem::make(api_, context_, dense));
    RUEDA_ASSIGN_OR_RETURN(const auto few, AttentionProblem::make(api_, context_, sparse));
    for (const bool backward : {false, true}) {
      std::vector<double> ratios;
      for (int round = 0; round < options_.rounds; ++round) {
        double times[2] = {};
        for (int i = 0; i < 2; ++i) {
          const int which = (i + round) % 2;
          RUEDA_ASSIGN_OR_RETURN(times[which],
                                 seconds_of((which == 0 ? all : few).get(), backward));
        }
        ratios.push_back(times[1] / times[0]);
      }
      char more[64];
      std::snprintf(more, sizeof(more), "work %.3f", few->flops(backward) / all->flops(backward));
      figures_->push_back(at_most("A14",
                                  std::string(backward ? "forward+backward" : "forward") +
                                      ", density 0.1 in blocks of 128, n " +
                                      std::to_string(dense.tokens) + ", time over dense",
                                  spread_of(ratios), 0.15, "", more));
    }
    return {};
  }

 private:
  std::vector<AttentionShape> sizes() const {
    const auto shape = [](int64_t tokens, int64_t heads, int64_t d, bool causal) {
      AttentionShape one;
      one.tokens = tokens;
      one.heads = heads;
      one.head_dim = d;
      one.causal = causal;
      return one;
    };
    if (options_.quick) return {shape(256, 2, 64, false), shape(256, 1, 64, true)};
    return {shape(1024, 8, 64, false), shape(4096, 2, 64, false), shape(4096, 2, 64, true),
            shape(4096, 2, 128, false), shape(16384, 1, 64, false)};
  }

  std::string rate(const Rounds& r) const {
    char text[80];
    std::snprintf(text, sizeof(text), "%.0f of %.0f GFLOP/s (%s)",
                  spread_of(r.forward_gflops).median, spread_of(peaks_).median, instructions_);
    return text;
  }

  // What is measured in a round: the peak, rueda forward and both, PyTorch forward and both.
  Result<Rounds> rounds_of(const AttentionShape& shape, TorchPeer* peer) {
    RUEDA_ASSIGN_OR_RETURN(const auto problem, AttentionProblem::make(api_, context_, shape));
    if (peer != nullptr) RUEDA_RETURN_IF_ERROR(peer->make(shape));
    Rounds result;
    const int parts = peer == nullptr ? 2 : 3;
    for (int round = -1; round < options_.rounds; ++round) {  // the first one warms up
      double peak = 0, own[2] = {}, theirs[2] = {};
      for (int i = 0; i < parts; ++i) {
        const int part = (i + round + parts) % parts;
        if (part == 0) {
          const CorePeak now = core_peak();
          peak = now.gflops;
          instructions_ = now.instructions;
        }
        for (const bool backward : {false, true}) {
          if (part == 1) {
            RUEDA_ASSIGN_OR_RETURN(own[backward], seconds_of(problem.get(), backward));
          } else if (part == 2 && peer != nullptr) {
            RUEDA_ASSIGN_OR_RETURN(theirs[backward], peer->run(backward));
          }
        }
      }
      if (round < 0) continue;
      peaks_.push_back(peak);
      const double forward = problem->flops(false) / own[0] * 1e-9;
      const double backward =
          (problem->flops(true) - problem->flops(false)) / (own[1] - own[0]) * 1e-9;
      result.forward_gflops.push_back(forward);
      result.forward_share.push_back(100 * forward / peak);
      result.backward_share.push_back(100 * backward / peak);
      if (peer == nullptr) continue;
      result.forward_ratio.push_back(theirs[0] / own[0]);
      result.both_ratio.push_back(theirs[1] / own[1]);
    }
    return result;
  }

  const LibRueda& api_;
  rueda_context* context_;
  const AttentionOptions& options_;
  std::vector<Figure>* figures_;
  std::vector<double> peaks_;
  const char* instructions_ = "";
};

}  // namespace

Status kernel_figures(const LibRueda& api, rueda_context* context, const AttentionOptions& options,
                      std::vector<Figure>* figures) {
  KernelBench bench(api, context, options, figures);
  RUEDA_RETURN_IF_ERROR(bench.against_peak());
  RUEDA_RETURN_IF_ERROR(bench.against_torch());
  return bench.sparse();
}

}  // namespace rueda::bench

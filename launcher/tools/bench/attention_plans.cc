// What plans promise, without running them: the same numbers on every machine.
#include <algorithm>

#include "launcher/tools/bench/attention_bench.h"
#include "launcher/tools/bench/attention_problem.h"

namespace rueda::bench {
namespace {

// A plan that nobody runs.
class Plan {
 public:
  static Result<Plan> make(const LibRueda& api, const rueda_attention_spec& spec, int rank,
                           int ranks) {
    Plan plan(api);
    rueda_error error = RUEDA_ERROR_INIT;
    RUEDA_RETURN_IF_ERROR(status_of(
        api.attention_plan_create(nullptr, &spec, 0, rank, ranks, &plan.plan_, &error), error));
    api.attention_plan_report(plan.plan_, plan.report_, kPlanNumbers);
    return plan;
  }
  Plan(Plan&& other) noexcept : api_(other.api_), plan_(std::exchange(other.plan_, nullptr)) {
    std::copy(std::begin(other.report_), std::end(other.report_), report_);
  }
  Plan& operator=(Plan&&) = delete;
  ~Plan() {
    if (plan_ != nullptr) api_->attention_plan_release(plan_);
  }
  double operator[](PlanNumber number) const { return static_cast<double>(report_[number]); }
  double balance() const { return api_->attention_plan_balance(plan_); }

 private:
  explicit Plan(const LibRueda& api) : api_(&api) {}
  const LibRueda* api_;
  rueda_attention_plan* plan_ = nullptr;
  int64_t report_[kPlanNumbers] = {};
};

rueda_attention_spec ring(int64_t length, int layout, bool causal) {
  rueda_attention_spec spec = RUEDA_ATTENTION_SPEC_INIT;
  spec.length = length;
  spec.heads = spec.kv_heads = 8;
  spec.head_dim = 64;
  spec.layout = layout;
  spec.causal = causal ? 1 : 0;
  return spec;
}

constexpr int kZigzag = 1, kStriped = 2;
constexpr int64_t kTokens64k = 65536;

Spread exactly(double value) { return {value, value, value}; }

Status bytes(const LibRueda& api, std::vector<Figure>* figures) {
  double sum[2] = {};
  constexpr int kRanks = 8;
  for (const bool causal : {false, true}) {
    for (int rank = 0; rank < kRanks; ++rank) {
      RUEDA_ASSIGN_OR_RETURN(const Plan plan,
                             Plan::make(api, ring(kTokens64k, kZigzag, causal), rank, kRanks));
      sum[causal] += plan[kBytesForward] + plan[kBytesBackward];
    }
  }
  figures->push_back(at_most("A6", "bytes of a causal zigzag ring of 8 over the whole ring's",
                             exactly(sum[1] / sum[0]), 0.75, ""));
  return {};
}

Status memory(const LibRueda& api, std::vector<Figure>* figures) {
  const auto peak = [](const Plan& plan) { return plan[kSaved] + plan[kWorkspaceBackward]; };
  std::vector<double> fixed_length, fixed_share;
  for (const int ranks : {2, 4, 8}) {
    RUEDA_ASSIGN_OR_RETURN(const Plan few,
                           Plan::make(api, ring(kTokens64k, kZigzag, true), 0, ranks));
    RUEDA_ASSIGN_OR_RETURN(const Plan more,
                           Plan::make(api, ring(kTokens64k, kZigzag, true), 0, 2 * ranks));
    RUEDA_ASSIGN_OR_RETURN(const Plan longer,
                           Plan::make(api, ring(2 * kTokens64k, kZigzag, true), 0, 2 * ranks));
    for (const PlanNumber number : {kSaved, kWorkspaceForward, kWorkspaceBackward})
      fixed_length.push_back(more[number] / few[number]);
    fixed_share.push_back(peak(longer) / peak(few));
  }
  const auto worst = [](std::vector<double> values) {
    return exactly(*std::max_element(values.begin(), values.end()));
  };
  figures->push_back(
      at_most("A7", "memory per rank with twice the ranks, same sequence (worst of 2 to 16)",
              worst(fixed_length), 0.55, "x"));
  figures->push_back(at_most("A7",
                             "memory per rank with twice the ranks, same tokens per rank (4 to 16)",
                             worst({fixed_share.begin() + 1, fixed_share.end()}), 1.02, "x"));
  figures->push_back({"A7", "the same from 2 ranks to 4 (a ring of two needs fewer slots)",
                      at_most("", "", exactly(fixed_share.front()), 0, "x").measured, "",
                      Verdict::kShown, fixed_share.front()});
  return {};
}

Status balance(const LibRueda& api, std::vector<Figure>* figures) {
  double zigzag = 1, packed = 1;
  uint64_t state = 1;
  for (const int ranks : {2, 3, 4, 8}) {
    RUEDA_ASSIGN_OR_RETURN(const Plan plan,
                           Plan::make(api, ring(256 * ranks + 3, kZigzag, true), 0, ranks));
    zigzag = std::max(zigzag, plan.balance());
    for (int trial = 0; trial < 5; ++trial) {
      std::vector<int64_t> ends = {0};
      for (int sequence = 0; sequence < 12; ++sequence) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        ends.push_back(ends.back() + 1 + static_cast<int64_t>((state >> 33) % 2000));
      }
      rueda_attention_spec spec = ring(ends.back(), kStriped, true);
      spec.cu_seqlens = ends.data();
      spec.cu_seqlens_count = static_cast<int64_t>(ends.size());
      RUEDA_ASSIGN_OR_RETURN(const Plan many, Plan::make(api, spec, 0, ranks));
      packed = std::max(packed, many.balance());
    }
  }
  figures->push_back(at_most("A8", "work, most over mean: causal zigzag, 2 to 8 ranks",
                             exactly(zigzag), 1.01, "x"));
  figures->push_back(at_most("A8", "work, most over mean: packed random lengths, 2 to 8 ranks",
                             exactly(packed), 1.05, "x"));
  return {};
}

}  // namespace

Status plan_figures(const LibRueda& api, std::vector<Figure>* figures) {
  RUEDA_RETURN_IF_ERROR(bytes(api, figures));
  RUEDA_RETURN_IF_ERROR(memory(api, figures));
  return balance(api, figures);
}

}  // namespace rueda::bench

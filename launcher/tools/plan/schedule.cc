#include "launcher/tools/plan/schedule.h"

#include <algorithm>

#include "launcher/tools/bench/librueda.h"

namespace rueda::plan {
namespace {

rueda_attention_spec spec_of(const PlanOptions& o) {
  rueda_attention_spec spec = RUEDA_ATTENTION_SPEC_INIT;
  spec.batch = o.batch;
  spec.length = o.length;
  spec.heads = o.heads;
  spec.kv_heads = o.kv_heads;
  spec.head_dim = o.head_dim;
  spec.dtype = spec.kv_wire = o.dtype;
  spec.layout = o.layout;
  spec.ulysses = o.ulysses;
  spec.rotate_forward = spec.rotate_backward = o.gather_first && o.rotate == 0 ? 1 : o.rotate;
  spec.gather_first = o.gather_first ? 1 : 0;
  spec.causal = o.causal ? 1 : 0;
  spec.chunk_tokens = o.chunk_tokens;
  spec.left = o.left;
  spec.right = o.right;
  spec.cu_seqlens = o.cu_seqlens.data();
  spec.cu_seqlens_count = static_cast<int64_t>(o.cu_seqlens.size());
  spec.layout_per_sequence = o.per_sequence ? 1 : 0;
  spec.segment_lengths = o.segment_lengths.data();
  spec.dilation_rates = o.dilation_rates.data();
  spec.pair_count = static_cast<int64_t>(o.segment_lengths.size());
  spec.split_heads = o.split_heads ? 1 : 0;
  spec.block = o.block;
  spec.block_heads = 1;
  spec.blocks = o.blocks.empty() ? nullptr : o.blocks.data();
  return spec;
}

std::vector<int64_t> tokens_of(const bench::LibRueda& api, const PlanOptions& o, int32_t rank) {
  std::vector<int64_t> ends = {0, o.length};
  if (o.per_sequence) ends = o.cu_seqlens;
  std::vector<int64_t> tokens;
  for (size_t i = 1; i < ends.size(); ++i) {
    std::vector<int64_t> own(static_cast<size_t>(ends[i] - ends[i - 1]));
    const int64_t count = api.attention_tokens(o.layout, ends[i] - ends[i - 1], rank, o.ranks,
                                               own.data(), static_cast<int64_t>(own.size()));
    for (int64_t t = 0; t < count; ++t) tokens.push_back(own[static_cast<size_t>(t)] + ends[i - 1]);
  }
  return tokens;
}

}  // namespace

Result<Schedule> load_schedule(const PlanOptions& options) {
  RUEDA_ASSIGN_OR_RETURN(const bench::LibRueda api, bench::open_librueda());
  if (api.attention_plan_create == nullptr || api.attention_plan_tiles == nullptr)
    return unavailable("librueda is of another version: it has no plans to look at");
  if (options.program && api.attention_plan_program == nullptr)
    return unavailable("librueda is of another version: its plans have no programs to print");
  const rueda_attention_spec spec = spec_of(options);
  Schedule schedule;
  for (int32_t rank = 0; rank < options.ranks; ++rank) {
    rueda_attention_plan* plan = nullptr;
    rueda_error error = RUEDA_ERROR_INIT;
    const int32_t code =
        api.attention_plan_create(nullptr, &spec, 0, rank, options.ranks, &plan, &error);
    RUEDA_RETURN_IF_ERROR(bench::status_of(code, error));
    RankPlan own;
    own.numbers.resize(static_cast<size_t>(api.attention_plan_report(plan, nullptr, 0)));
    api.attention_plan_report(plan, own.numbers.data(), static_cast<int32_t>(own.numbers.size()));
    const int32_t backward = options.backward ? 1 : 0;
    std::vector<int64_t> n(
        static_cast<size_t>(api.attention_plan_tiles(plan, backward, nullptr, 0)));
    api.attention_plan_tiles(plan, backward, n.data(), static_cast<int64_t>(n.size()));
    for (size_t i = 0; i + RUEDA_ATTENTION_TILE_NUMBERS <= n.size();
         i += RUEDA_ATTENTION_TILE_NUMBERS) {
      own.tiles.push_back({n[i], n[i + 1], n[i + 2], n[i + 3], n[i + 4], n[i + 5], n[i + 6],
                           n[i + 7], n[i + 8], n[i + 9], n[i + 10], n[i + 11]});
      schedule.steps = std::max(schedule.steps, n[i] + 1);
    }
    own.tokens = tokens_of(api, options, rank);
    if (options.program) {
      own.program.resize(
          static_cast<size_t>(api.attention_plan_program(plan, backward, nullptr, 0)));
      api.attention_plan_program(plan, backward, own.program.data(), std::ssize(own.program) + 1);
    }
    if (rank == 0) schedule.balance = api.attention_plan_balance(plan);
    api.attention_plan_release(plan);
    schedule.ranks.push_back(std::move(own));
  }
  return schedule;
}

}  // namespace rueda::plan

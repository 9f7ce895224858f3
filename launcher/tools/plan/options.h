// The command line of `rueda attention plan` as a value. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::plan {

struct PlanOptions {
  bool help = false;
  std::string text;  // of help
  int32_t ranks = 4;
  int64_t batch = 1, length = 64, heads = 1, kv_heads = 0, head_dim = 64;  // kv_heads 0: as heads
  int32_t dtype = 0, layout = 0, rotate = 0;  // as rueda_attention_spec
  int32_t ulysses = 1;
  bool gather_first = false, causal = false, backward = false;
  int64_t left = -1, right = -1, chunk_tokens = 0;
  std::vector<int64_t> cu_seqlens, segment_lengths, dilation_rates;
  bool per_sequence = false, split_heads = false;
  int64_t block = 0;
  std::vector<uint8_t> blocks;
  int64_t head = 0;  // the KV head that is drawn
  bool program = false;
  std::string svg;  // file; empty: none, "-": standard output, and nothing else there
};

Result<PlanOptions> parse_plan_options(const std::vector<std::string>& arguments);

}  // namespace rueda::plan

// One attention on this rank, with its tensors: what the rows of `rueda bench attention` time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "launcher/tools/bench/librueda.h"

namespace rueda::bench {

struct AttentionShape {
  int64_t tokens = 4096, heads = 1, head_dim = 64;
  bool bf16 = false;
  bool causal = false;
  bool zigzag = false;
  int64_t block = 0;     // of a random block mask; 0: none
  double density = 1.0;  // of its blocks
};

// Owns tensors and plan; borrows api and context. One thread.
class AttentionProblem {
 public:
  static Result<std::unique_ptr<AttentionProblem>> make(const LibRueda& api, rueda_context* context,
                                                        const AttentionShape& shape);
  ~AttentionProblem();
  AttentionProblem(const AttentionProblem&) = delete;
  AttentionProblem& operator=(const AttentionProblem&) = delete;

  // Overwrites every input with other values of the same distribution.
  void make_dirty();
  // On this thread and no other of the library's; `backward` after it.
  Status run(bool backward);
  // The same, one after the other.
  Status run_forward(bool keep_for_backward);
  Status run_backward();
  // Of this rank, both passes if so asked: as the plan counts them.
  double flops(bool backward) const;
  int64_t bytes_sent(bool backward) const;

 private:
  AttentionProblem(const LibRueda& api, rueda_context* context) : api_(api), context_(context) {}
  Status plan(const AttentionShape& shape);
  void fill(const AttentionShape& shape);
  void drop_saved();
  Status end(rueda_request* call, int32_t code, const rueda_error& error) const;

  LibRueda api_;
  rueda_context* context_;
  rueda_attention_plan* plan_ = nullptr;
  std::vector<int64_t> report_;
  std::vector<uint8_t> mask_;
  // Words: of float32, or two of bf16.
  std::vector<uint32_t> q_, k_, v_, dout_, out_, dq_, dk_, dv_;
  std::vector<float> lse_;
  rueda_attention_saved* saved_ = nullptr;
};

// A random mask with the same number of blocks in each row, the diagonal among them; equal bits for
// equal arguments.
std::vector<uint8_t> block_mask(int64_t rows, double density);

// The numbers of rueda_attention_plan_report by name.
enum PlanNumber {
  kTokens = 1,
  kBytesForward = 6,
  kBytesBackward = 7,
  kFlopsForward = 10,
  kFlopsBackward = 11,
  kSaved = 12,
  kWorkspaceForward = 13,
  kWorkspaceBackward = 14,
  kPlanNumbers = 15,
};

}  // namespace rueda::bench

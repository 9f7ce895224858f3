#include "launcher/tools/bench/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rueda::bench {
namespace {

// Sums of uniform numbers are close to normal ones; no library's distribution, so the same bits
// everywhere.
struct Numbers {
  uint64_t state = 88172645463325252ull;
  uint32_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<uint32_t>(state >> 32);
  }
  float normal() {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(next()) * 0x1p-32f - 0.5f;
    return sum * 1.732f;  // variance 4/12
  }
};

uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

std::vector<uint8_t> block_mask(int64_t rows, double density) {
  Numbers numbers;
  std::vector<uint8_t> mask(static_cast<size_t>(rows * rows), 0);
  const int64_t wanted = std::clamp<int64_t>(
      static_cast<int64_t>(std::lround(density * static_cast<double>(rows))), 1, rows);
  for (int64_t i = 0; i < rows; ++i) {
    uint8_t* row = mask.data() + i * rows;
    row[i] = 1;
    for (int64_t have = 1; have < wanted;) {
      uint8_t& one = row[numbers.next() % static_cast<uint32_t>(rows)];
      have += one == 0 ? 1 : 0;
      one = 1;
    }
  }
  return mask;
}

Result<std::unique_ptr<AttentionProblem>> AttentionProblem::make(const LibRueda& api,
                                                                 rueda_context* context,
                                                                 const AttentionShape& shape) {
  std::unique_ptr<AttentionProblem> problem(new AttentionProblem(api, context));
  RUEDA_RETURN_IF_ERROR(problem->plan(shape));
  problem->fill(shape);
  return problem;
}

AttentionProblem::~AttentionProblem() {
  drop_saved();
  if (plan_ != nullptr) api_.attention_plan_release(plan_);
}

Status AttentionProblem::plan(const AttentionShape& shape) {
  rueda_attention_spec spec = RUEDA_ATTENTION_SPEC_INIT;
  spec.length = shape.tokens;
  spec.heads = spec.kv_heads = shape.heads;
  spec.head_dim = shape.head_dim;
  spec.dtype = spec.kv_wire = shape.bf16 ? RUEDA_BFLOAT16 : RUEDA_FLOAT32;
  spec.layout = shape.zigzag ? 1 : 0;
  spec.causal = shape.causal ? 1 : 0;
  if (shape.block > 0) {
    mask_ = block_mask((shape.tokens + shape.block - 1) / shape.block, shape.density);
    spec.block = shape.block;
    spec.block_heads = 1;
    spec.blocks = mask_.data();
  }
  rueda_error error = RUEDA_ERROR_INIT;
  RUEDA_RETURN_IF_ERROR(
      status_of(api_.attention_plan_create(context_, &spec, 0, 0, 1, &plan_, &error), error));
  report_.resize(kPlanNumbers);
  api_.attention_plan_report(plan_, report_.data(), kPlanNumbers);
  return {};
}

void AttentionProblem::fill(const AttentionShape& shape) {
  const auto rows = static_cast<size_t>(report_[kTokens] * shape.heads);
  const size_t words =
      (rows * static_cast<size_t>(shape.head_dim) + (shape.bf16 ? 1 : 0)) / (shape.bf16 ? 2 : 1);
  Numbers numbers;
  for (auto* inputs : {&q_, &k_, &v_, &dout_}) {
    inputs->resize(words);
    for (uint32_t& word : *inputs) {
      word = bits_of(numbers.normal());
      if (shape.bf16) word = (word & 0xffff0000u) | bits_of(numbers.normal()) >> 16;
    }
  }
  for (auto* outputs : {&out_, &dq_, &dk_, &dv_}) outputs->assign(words, 0);
  lse_.assign(rows, 0);
}

void AttentionProblem::make_dirty() {
  for (auto* inputs : {&q_, &k_, &v_, &dout_}) {
    for (uint32_t& word : *inputs) word ^= 0x80008000u;  // other signs; float32: also a low bit
  }
}

Status AttentionProblem::end(rueda_request* call, int32_t code, const rueda_error& error) const {
  RUEDA_RETURN_IF_ERROR(status_of(code, error));
  rueda_error late = RUEDA_ERROR_INIT;
  const Status status = status_of(api_.request_wait(call, -1, &late), late);
  api_.request_release(call);
  return status;
}

Status AttentionProblem::run_forward(bool keep_for_backward) {
  drop_saved();
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_request* call = nullptr;
  const int32_t code =
      api_.attention_forward(context_, plan_, 0, 1, q_.data(), k_.data(), v_.data(), out_.data(),
                             lse_.data(), keep_for_backward ? &saved_ : nullptr, &call, &error);
  return end(call, code, error);
}

Status AttentionProblem::run_backward() {
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_request* call = nullptr;
  const int32_t code = api_.attention_backward(
      context_, plan_, 0, 1, dout_.data(), nullptr, q_.data(), k_.data(), v_.data(), out_.data(),
      lse_.data(), saved_, dq_.data(), dk_.data(), dv_.data(), &call, &error);
  const Status status = end(call, code, error);
  drop_saved();
  return status;
}

Status AttentionProblem::run(bool backward) {
  RUEDA_RETURN_IF_ERROR(run_forward(backward));
  return backward ? run_backward() : Status{};
}

void AttentionProblem::drop_saved() {
  if (saved_ != nullptr) api_.attention_saved_release(std::exchange(saved_, nullptr));
}

double AttentionProblem::flops(bool backward) const {
  return static_cast<double>(report_[kFlopsForward] + (backward ? report_[kFlopsBackward] : 0));
}

int64_t AttentionProblem::bytes_sent(bool backward) const {
  return report_[kBytesForward] + (backward ? report_[kBytesBackward] : 0);
}

}  // namespace rueda::bench

// What librueda_cuda.so gives for attention, computed on the host's memory by the same source: the
// Python side of the block kernel runs with it on CPU tensors.
#include "attention/cuda/merge.h"
#include "tests/attention/host_block.h"

namespace rueda::testing {
namespace {

int forward(const cuda::Call* call, void*) {
  run<cuda::Forward, false>(*call, call->heads);
  return 0;
}
int backward_queries(const cuda::Call* call, void*) {
  run<cuda::BackwardQueries, true>(*call, call->heads);
  return 0;
}
int backward_keys(const cuda::Call* call, void*) {
  run<cuda::BackwardKeys, true>(*call, call->kv_heads);
  return 0;
}

// Two lanes, one after the other.
template <typename Element>
void merge_row(const cuda::MergeCall& call, int64_t batch, int64_t row, int64_t head) {
  cuda::Merged merged{};
  for (int lane = 0; lane < 2; ++lane)
    merged = cuda::merge_part<Element>(call, batch, row, head, lane, 2);
  cuda::merge_end(call, batch, row, head, merged);
}
template <typename Element>
void add_row(const cuda::MergeCall& call, int64_t batch, int64_t row, int64_t head) {
  for (int lane = 0; lane < 2; ++lane) cuda::add_part<Element>(call, batch, row, head, lane, 2);
}

using RowFunction = void (*)(const cuda::MergeCall&, int64_t, int64_t, int64_t);
int each_row(const cuda::MergeCall& call, RowFunction wide, RowFunction half, RowFunction brain) {
  const RowFunction of = call.format == cuda::Format::kFloat32   ? wide
                         : call.format == cuda::Format::kFloat16 ? half
                                                                 : brain;
  for (int64_t b = 0; b < call.batches; ++b) {
    for (int64_t row = 0; row < call.rows; ++row) {
      for (int64_t head = 0; head < call.heads; ++head) of(call, b, row, head);
    }
  }
  return 0;
}
int merge(const cuda::MergeCall* call, void*) {
  return each_row(*call, merge_row<float>, merge_row<cuda::Half>, merge_row<cuda::Brain>);
}
int add(const cuda::MergeCall* call, void*) {
  return each_row(*call, add_row<float>, add_row<cuda::Half>, add_row<cuda::Brain>);
}

int32_t block_rows(int32_t head_dim, int32_t backward) {
  return cuda::rows_for(head_dim, backward != 0);
}
const char* explain(int) { return "an error of the host's"; }

const cuda::AttentionFunctions functions = {
    cuda::kAttentionVersion, block_rows, forward, backward_queries,
    backward_keys,           merge,      add,     explain};

}  // namespace
}  // namespace rueda::testing

extern "C" __attribute__((visibility("default"))) const rueda::attention::cuda::AttentionFunctions*
rueda_cuda_attention(uint32_t version) {
  return version == rueda::attention::cuda::kAttentionVersion ? &rueda::testing::functions
                                                              : nullptr;
}

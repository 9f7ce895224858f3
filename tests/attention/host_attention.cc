// What librueda_cuda.so gives for attention, computed on the host's memory by the same source: the
// Python side of the block kernel runs with it on CPU tensors.
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

template <typename Element>
void merge_rows(const cuda::MergeCall& call) {
  for (int64_t b = 0; b < call.batches; ++b) {
    for (int64_t row = 0; row < call.rows; ++row) {
      for (int64_t head = 0; head < call.heads; ++head) {
        const cuda::Merged merged = cuda::merge_part<Element>(call, b, row, head, 0, 1);
        cuda::merge_end(call, b, row, head, merged);
      }
    }
  }
}
int merge(const cuda::MergeCall* call, void*) {
  switch (call->format) {
    case cuda::Format::kFloat32: merge_rows<float>(*call); break;
    case cuda::Format::kFloat16: merge_rows<cuda::Half>(*call); break;
    case cuda::Format::kBFloat16: merge_rows<cuda::Brain>(*call); break;
  }
  return 0;
}

int32_t block_rows(int32_t head_dim, int32_t backward) {
  return cuda::rows_for(head_dim, backward != 0);
}
const char* explain(int) { return "an error of the host's"; }

const cuda::AttentionFunctions functions = {
    cuda::kAttentionVersion, block_rows, forward, backward_queries, backward_keys, merge, explain};

}  // namespace
}  // namespace rueda::testing

extern "C" __attribute__((visibility("default"))) const rueda::attention::cuda::AttentionFunctions*
rueda_cuda_attention(uint32_t version) {
  return version == rueda::attention::cuda::kAttentionVersion ? &rueda::testing::functions
                                                              : nullptr;
}

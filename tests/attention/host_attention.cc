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
struct Merging {
  template <typename Element>
  static void run(const cuda::MergeCall& call, const cuda::Jobs& jobs) {
    (void)cuda::merge_parts<Element>(call, jobs, 0, 2);
    cuda::merge_end(call, jobs, cuda::merge_parts<Element>(call, jobs, 1, 2));
  }
};
struct Adding {
  template <typename Element>
  static void run(const cuda::MergeCall& call, const cuda::Jobs& jobs) {
    for (int lane = 0; lane < 2; ++lane) cuda::add_parts<Element>(call, jobs, lane, 2);
  }
};
struct Finishing {
  template <typename Element>
  static void run(const cuda::MergeCall& call, const cuda::Jobs& jobs) {
    (void)cuda::finish_parts<Element>(call, jobs, 0, 2);
    cuda::finish_end(call, jobs, cuda::finish_parts<Element>(call, jobs, 1, 2));
  }
};

template <typename Work>
int each_row(const cuda::MergeCall* call, void*) {
  for (int64_t b = 0; b < call->batches; ++b) {
    for (int64_t group = 0; group < cuda::groups_of(*call); ++group) {
      const cuda::Jobs jobs = cuda::jobs_of(*call, b, static_cast<uint32_t>(group));
      switch (call->format) {
        case cuda::Format::kFloat32: Work::template run<float>(*call, jobs); break;
        case cuda::Format::kFloat16: Work::template run<cuda::Half>(*call, jobs); break;
        case cuda::Format::kBFloat16: Work::template run<cuda::Brain>(*call, jobs); break;
      }
    }
  }
  return 0;
}

int32_t block_rows(int32_t head_dim, int32_t backward) {
  return cuda::rows_for(head_dim, backward != 0);
}
const char* explain(int) { return "an error of the host's"; }

const cuda::AttentionFunctions functions = {
    cuda::kAttentionVersion, block_rows,          forward,
    backward_queries,        backward_keys,       each_row<Merging>,
    each_row<Adding>,        each_row<Finishing>, explain};

}  // namespace
}  // namespace rueda::testing

extern "C" __attribute__((visibility("default"))) const rueda::attention::cuda::AttentionFunctions*
rueda_cuda_attention(uint32_t version) {
  return version == rueda::attention::cuda::kAttentionVersion ? &rueda::testing::functions
                                                              : nullptr;
}

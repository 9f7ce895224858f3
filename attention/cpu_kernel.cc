// Blockwise attention on the CPU, compiled once per instruction set.
//
// One multiplication, multiply() of a policy, does all seven products: six rows of A, each word
// broadcast, against up to four vectors of B, sums in registers. Keys are packed once per block and
// used by all queries: transposed in panels for scores, by rows for the values. Softmax is kept up
// to date per block of keys (Milakov, Gimelshein 2018; Dao 2022 calls the whole FlashAttention).
//
// No std:: templates here: see collectives/kernels/targets.h.
#include "attention/local_kernel.h"

#include <string.h>

#include "collectives/kernels/highway_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu_kernel.cc"
#include "hwy/foreach_target.h"

#include "attention/cpu_backward-inl.h"
#include "attention/cpu_floats-inl.h"
#include "attention/cpu_forward-inl.h"
#include "attention/cpu_pairs-inl.h"
#include "hwy/highway.h"

RUEDA_ATTENTION_BEFORE_NAMESPACE();
namespace rueda::attention::HWY_NAMESPACE {

void forward(const KernelTile& tile, float* scratch) { forward_of<Floats>(tile, scratch); }
void backward(const KernelTile& tile, float* scratch) { backward_of<Floats>(tile, scratch); }
constexpr NativeKernel kKernel = {forward, backward};

#if HWY_TARGET == HWY_AVX3
void pairs_forward(const KernelTile& tile, float* scratch) { forward_of<Pairs>(tile, scratch); }
void pairs_backward(const KernelTile& tile, float* scratch) { backward_of<Pairs>(tile, scratch); }
constexpr NativeKernel kPairs = {pairs_forward, pairs_backward};
#endif

}  // namespace rueda::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <string>

#include "collectives/kernels/kernels.h"

namespace rueda::attention {

const NativeKernel& native_kernel() {
  const std::string target = kernels::active_target();
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_SSE4
  if (target == "sse4") return N_SSE4::kKernel;
#endif
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_AVX2
  if (target == "avx2") return N_AVX2::kKernel;
#endif
#if HWY_TARGETS & ~HWY_STATIC_TARGET & HWY_AVX3
  if (target == "avx512") return N_AVX3::kKernel;
#endif
  return *&HWY_STATIC_DISPATCH(kKernel);
}

const NativeKernel* pairs_kernel() {
#if HWY_TARGETS & HWY_AVX3
  return &N_AVX3::kPairs;
#else
  return nullptr;
#endif
}

}  // namespace rueda::attention
#endif  // HWY_ONCE

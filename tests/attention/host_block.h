// Launches of the block kernel on the host: every item, head and batch, one after another.
#pragma once

#include <cstring>
#include <memory>

#include "attention/cuda/backward.h"
#include "attention/cuda/forward.h"

namespace rueda::testing {
namespace cuda = attention::cuda;

template <template <typename, typename, int, int> class Pass, typename Element, int kRows,
          int kWidth>
void run_items(const cuda::Call& call, int64_t heads) {
  using Run = Pass<cuda::HostBlock, Element, kRows, kWidth>;
  const auto shared = std::make_unique<typename Run::Shared>();
  for (int64_t batch = 0; batch < call.batches; ++batch) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < call.item_count; ++i) {
        std::memset(static_cast<void*>(shared.get()), 0xff,
                    sizeof(*shared));  // NaN: nothing is relied on
        Run::run(cuda::HostBlock{}, call, call.items[i], batch, head, *shared);
      }
    }
  }
}
template <template <typename, typename, int, int> class Pass, bool kBackward, int kWidth>
void run_width(const cuda::Call& call, int64_t heads) {
  constexpr int kRows = cuda::rows_for(kWidth, kBackward);
  switch (call.format) {
    case cuda::Format::kFloat32: return run_items<Pass, float, kRows, kWidth>(call, heads);
    case cuda::Format::kFloat16: return run_items<Pass, cuda::Half, kRows, kWidth>(call, heads);
    case cuda::Format::kBFloat16: return run_items<Pass, cuda::Brain, kRows, kWidth>(call, heads);
  }
}
template <template <typename, typename, int, int> class Pass, bool kBackward>
void run(const cuda::Call& call, int64_t heads) {
  if (call.head_dim <= 64) return run_width<Pass, kBackward, 64>(call, heads);
  if (call.head_dim <= 128) return run_width<Pass, kBackward, 128>(call, heads);
  run_width<Pass, kBackward, 256>(call, heads);
}

}  // namespace rueda::testing

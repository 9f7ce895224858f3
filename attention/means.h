// Means: what a call computes with.
#pragma once

#include "attention/kernel_registry.h"
#include "attention/workers.h"

namespace rueda::attention {

struct Means {
  int threads = 1;                   // at most so many compute; bits may depend on it
  const Kernels* kernels = nullptr;  // never null where something is attended to
  Workers* workers = nullptr;        // null: the calling thread computes alone
};

// fn(i) for i < count, each once. Throws what the first fn threw.
inline void in_parallel(const Means& means, int64_t count, const std::function<void(int64_t)>& fn) {
  if (means.workers != nullptr) return means.workers->in_parallel(count, means.threads, fn);
  for (int64_t i = 0; i < count; ++i) fn(i);
}

}  // namespace rueda::attention

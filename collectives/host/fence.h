// The fences of a seqlock, whose words are all atomic (H. Boehm, "Can seqlocks get along with
// programming language memory models?", MSPC 2012). ThreadSanitizer does not know fences and g++
// refuses them under it; as no word here is ever raced on, it needs none.
#pragma once

#include <atomic>

namespace rueda::host {

inline void seqlock_fence([[maybe_unused]] std::memory_order order) {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(order);
#endif
}

}  // namespace rueda::host

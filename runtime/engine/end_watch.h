// EndWatch: what a thread sleeps on that waits for any of several completions.
//
// Threads: one waits; any ring. It lives until it has been taken away from all of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/engine/completion.h"

namespace rueda::engine {

// 0, or EAGAIN (the word has another value), EINTR, ETIMEDOUT.
int futex_wait(std::atomic<uint32_t>* word, uint32_t value, const Helper::Deadline& deadline);
void futex_wake(std::atomic<uint32_t>* word);  // all who wait

class EndWatch {
 public:
  // Something has ended.
  void ring() {
    rung_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&rung_);
  }
  uint32_t rung() const { return rung_.load(std::memory_order_seq_cst); }
  // Until it has been rung more often than so often; as futex_wait.
  int sleep(uint32_t rung, const Helper::Deadline& deadline) {
    return futex_wait(&rung_, rung, deadline);
  }

 private:
  std::atomic<uint32_t> rung_{0};
};

}  // namespace rueda::engine

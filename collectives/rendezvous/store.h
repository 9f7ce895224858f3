// Store: the meeting point where the ranks of one epoch leave what the others need to find them.
//
// Words:   a key is text, a value bytes (at most kMaxValueBytes). Keys live as long as the store; a
// key is set once. Threads: implementations are safe for use from any thread. Failure: get ends
// with kDeadlineExceeded naming the key, or kUnavailable when the store's server is gone.
#pragma once

#include <chrono>
#include <string>

#include "collectives/base/status.h"

namespace rueda::rendezvous {

inline constexpr size_t kMaxKeyBytes = 512;
inline constexpr size_t kMaxValueBytes = 1 << 20;

class Store {
 public:
  virtual ~Store() = default;
  // kAlreadyExists when the key holds another value.
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // Blocks until the key is set or the timeout has passed.
  virtual Result<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) = 0;
};

}  // namespace rueda::rendezvous

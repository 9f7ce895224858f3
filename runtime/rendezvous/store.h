// Store: the meeting point where the ranks of one epoch leave what the others need to find them.
//
// Words:   a key is UTF-8 text (1 to kMaxKeyBytes), a value bytes (at most kMaxValueBytes). Keys
//          live as long as the store; a key is set once. The last part of a key is the rank that
//          sets it: "e1/place/3" is rank 3's, so that its death can be told to who waits for it.
//          A key that ends with no rank ("e1/verdict") is anybody's. Keys below kUserKeys are
//          users', whose values may change; only a StoreClient changes them.
// Threads: implementations are safe for use from any thread.
// Failure: get ends with kDeadlineExceeded naming the key, or kUnavailable naming the rank that
//          died, or the launcher when its end of the store is gone. kInvalidArgument for a key or
//          value that is none, kResourceExhausted when the store is full.
#pragma once

#include <chrono>
#include <string>

#include "collectives/base/status.h"

namespace rueda::rendezvous {

inline constexpr size_t kMaxKeyBytes = 512;
inline constexpr size_t kMaxValueBytes = 1 << 20;
inline constexpr const char* kUserKeys = "user/";

class Store {
 public:
  virtual ~Store() = default;
  // Setting the same value again is no error; kAlreadyExists when the key holds another one.
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // Blocks until the key is set or the timeout has passed.
  virtual Result<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) = 0;
};

}  // namespace rueda::rendezvous

// A small agreed maximum: what all ranks are asked again and again, at the price of one planned
// allreduce.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "collectives/base/status.h"
#include "runtime/engine/runtime.h"

namespace rueda::c_abi {

// Its memory outlives a vote under way: the rank has left before it is destroyed. Thread-safe.
class MaxVote {
 public:
  explicit MaxVote(const char* name) : name_(name) {}

  // The largest of what all ranks give; `mine` is called if this call begins a vote. kAborted: a
  // signal came; the next call goes on with the same vote.
  Result<int64_t> ask(engine::Runtime* runtime, const std::function<int64_t()>& mine);

 private:
  const char* name_;
  std::mutex mutex_;
  engine::RequestPtr request_;
  bool under_way_ = false;
  int64_t value_ = 0;
};

}  // namespace rueda::c_abi

// Inside the executor: what its files share.
#pragma once

#include <memory>
#include <vector>

#include "runtime/engine/executor.h"

namespace rueda::engine {

// A collective under way, or ready to be.
struct Executor::Batch {
  std::unique_ptr<Collective> collective;  // on the host, or on the GPU if it is not planned
  CollectiveKind kind = CollectiveKind::kAllreduce;
  uint64_t number = 0;
  uint64_t generation = 0;  // 0: negotiated
  timeline::Nanos begun = 0;
  StageTimes times;
  bool recorded = false;  // somebody recorded when it began
  timeline::nvtx::RangeId range = 0;
  nccl::StreamOrder order;
};

struct Executor::Negotiated : Batch {
  std::vector<Request*> members;
  bool on_device = false;
};

struct Executor::Planned : Batch {
  std::unique_ptr<Collective> on_device;  // of GPU tensors; then `collective` is the meeting
  std::vector<TensorResult> results;
  std::vector<plan::OpHandle> handles;  // while under way
  uint64_t templates = 0;               // in the flight recorder, of its first tensor
  uint64_t flight = 0;                  // its entry there, while under way
  int64_t bytes = 0;                    // of its tensors here

  // The one that has the tensors.
  Collective& with_tensors() { return on_device ? *on_device : *collective; }
};

inline Request& request_of(plan::OpHandle handle) { return *handle.as<Request>(); }

}  // namespace rueda::engine

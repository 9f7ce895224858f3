// GpuWorld: whole runtimes as threads whose tensors may be on fake GPUs.
#pragma once

#include <string>

#include "tests/cuda/device_world.h"
#include "tests/runtime/runtime_calls.h"
#include "tests/support/built.h"

namespace rueda::testing {

using engine::Operation;
using engine::Runtime;

inline Config gpu_config() {
  Config config;
  config.cuda_driver = built::kFakeCuda;
  config.nccl_library = built::kStubNccl;
  config.cuda_kernels = built::kFakeKernels;
  return config;
}

// Rank r uses GPU r.
struct GpuWorld {
  explicit GpuWorld(Rank size, Kind kind = Kind::kShm, const Config& config = gpu_config())
      : world(kind, size, config) {}
  Variable driver{"RUEDA_CUDA_DRIVER", built::kFakeCuda};
  RuntimeWorld world;
};

inline Operation on_gpu(Operation op, Rank rank, cuda::StreamHandle stream = nullptr) {
  op.device = rank;
  op.stream = stream;
  return op;
}

// Waits for the host's end and the GPU's.
inline Status finish(const RequestPtr& work) {
  const Status status = end_of(work);
  if (status.ok() && work->device_end() != nullptr) must(work->device_end()->wait());
  return status;
}

inline Floats filled(size_t count, float value) { return Floats(count, value); }

}  // namespace rueda::testing

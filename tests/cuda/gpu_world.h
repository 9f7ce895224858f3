// GpuWorld: whole runtimes as threads whose tensors may be on fake GPUs.
#pragma once

#include <algorithm>
#include <functional>
#include <future>
#include <optional>
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

// How an operation stands to the user's stream that it is given to: its input is filled there,
// late, and its output read behind it.
struct Stood {
  bool was_early = true;  // the GPU had done it before its input was there
  float seen = 0;         // of the output, by the stream's next work
};
// op: without a stream, on `data`. filled: what the stream fills in; empty: nothing. The gate opens
// when between() has returned.
inline Stood stand_in_stream(Runtime& runtime, Operation op, Floats* data,
                             const std::optional<float>& filled,
                             const std::function<void()>& between = {}) {
  UserStream user(must(runtime.machine().device(op.device)));
  std::promise<void> gate;
  if (filled) {
    user.run([data, filled, open = gate.get_future().share()] {
      open.wait();
      std::fill(data->begin(), data->end(), *filled);
    });
  }
  op.stream = user.handle();
  const RequestPtr work = start(runtime, std::move(op));
  must(end_of(work));  // the host does not wait for the GPU
  Stood stood;
  stood.was_early = must(work->device_end()->query());
  must(work->device_end()->make_wait(user.handle()));
  user.run([&] { stood.seen = data->back(); });
  if (between) between();
  gate.set_value();
  must(user.mark()->wait());
  return stood;
}

inline Floats filled(size_t count, float value) { return Floats(count, value); }

}  // namespace rueda::testing

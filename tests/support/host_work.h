// Work of the host in streams of the fake driver, for the neutral contributions of what launches
// kernels.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "collectives/cuda/functions.h"

namespace rueda::testing {

inline bool is_captured(cuda::StreamHandle stream) {
  using Ask = int (*)(cuda::StreamHandle, int*);
  static void* const driver = dlopen(std::getenv("RUEDA_CUDA_DRIVER"), RTLD_NOW);
  static const auto ask = reinterpret_cast<Ask>(dlsym(driver, "cuStreamIsCapturing"));
  int captured = 0;
  (void)ask(stream, &captured);
  return captured != 0;
}

// Once, or with each launch of the graph that the stream is captured into.
inline void run_in_stream(cuda::StreamHandle stream, std::function<void()> work) {
  using Launch = int (*)(cuda::StreamHandle, void (*)(void*), void*);
  // The driver that the process uses, global or not.
  static void* const driver = dlopen(std::getenv("RUEDA_CUDA_DRIVER"), RTLD_NOW);
  static const auto launch = reinterpret_cast<Launch>(dlsym(driver, "cuLaunchHostFunc"));
  auto* const given = new std::function<void()>(std::move(work));
  if (is_captured(stream)) {  // as long as the graph: for ever
    static auto* const kept = new std::vector<std::unique_ptr<std::function<void()>>>;
    static auto* const mutex = new std::mutex;
    const std::lock_guard lock(*mutex);
    kept->emplace_back(given);
    launch(
        stream, [](void* argument) { (*static_cast<std::function<void()>*>(argument))(); }, given);
    return;
  }
  launch(
      stream,
      [](void* argument) {
        const std::unique_ptr<std::function<void()>> owned(
            static_cast<std::function<void()>*>(argument));
        (*owned)();
      },
      given);
}

}  // namespace rueda::testing

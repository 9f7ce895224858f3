// Machine: what one rank uses of its GPUs, opened with the first GPU tensor and not before: a job
// of CPU tensors opens no driver, no NCCL and no context.
//
// Threads: any. Failure: FailedPrecondition says what is missing; asked again it tries again.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "collectives/cuda/device.h"
#include "collectives/cuda/kernels/library.h"
#include "collectives/nccl/library.h"
#include "collectives/nccl/watcher.h"

namespace rueda::nccl {

// What NCCL is told of memory that is used again (RUEDA_NCCL_REGISTER).
enum class Registers { kNone, kLocal, kWindows };

class Machine {
 public:
  struct Options {
    std::string driver;         // RUEDA_CUDA_DRIVER
    std::string library;        // RUEDA_NCCL_LIBRARY
    std::string kernels;        // RUEDA_CUDA_KERNELS
    int32_t ranks_per_gpu = 1;  // RUEDA_RANKS_PER_GPU
    Registers registers = Registers::kWindows;
    std::chrono::nanoseconds patience{0};  // for NCCL's start
    std::function<void()> ring;            // wakes the coordinator; any thread
    // The rank's GPU is known: its UUID. Called once, by prepare_mark().
    std::function<void(const std::string&)> chosen = {};
  };
  explicit Machine(Options options) : options_(std::move(options)) {}

  const Options& options() const { return options_; }
  Result<cuda::DevicePtr> device(int ordinal);
  Result<std::shared_ptr<const Library>> library();
  // rueda's own kernels; null where there are none for this device.
  std::shared_ptr<const cuda::kernels::Library> kernels(const cuda::DevicePtr& device);
  Watcher& watcher() { return watcher_; }
  // Makes an event for mark_again(), and opens the device and its driver, the first time. The first
  // device is the rank's for good: InvalidArgument for another.
  Result<cuda::Mark> prepare_mark(int ordinal);
  // The mark at what a stream of the user's has been given by now; makes nothing. stream: of that
  // device; null: its default stream.
  Status mark_again(cuda::Mark* mark, cuda::StreamHandle stream);

 private:
  const Options options_;
  std::mutex mutex_;
  std::shared_ptr<const cuda::DriverApi> driver_;
  std::shared_ptr<const Library> library_;
  bool kernels_known_ = false;
  std::shared_ptr<const cuda::kernels::Library> kernels_;
  std::map<int, cuda::DevicePtr> devices_;
  int used_ = -1;           // by the first mark
  std::mutex marks_mutex_;  // marks of one stream are numbered in the order of their recording
  uint64_t marks_ = 0;
  Watcher watcher_;
};

}  // namespace rueda::nccl

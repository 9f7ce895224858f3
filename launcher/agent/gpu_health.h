// GpuHealth: what NVIDIA's management library (NVML) knows of this host's GPUs when a rank on one
// is lost: Xid errors and uncorrected ECC errors since the job began, remapped rows, clocks that
// are held down. A hint, not a proof.
//
// A GPU that is in trouble may hold up whoever asks for it, so a thread of its own does all the
// asking: it waits for Xid events, looks at everything every two seconds and when it is asked.
//
// Threads: the agent's.
// Failure: without the library, or without an answer in time, nothing is said.
// End:     the destructor waits a second at most; a thread that NVML holds is left behind.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace rueda::launcher {

// Of one GPU, or of a part of one (MIG): Xid errors are those of the part and of the whole GPU, all
// else is the GPU's.
struct GpuState {
  std::string uuid;                         // "GPU-1b4e...", "MIG-7c0d..., a part of GPU-1b4e..."
  std::vector<unsigned long long> xids;     // since the beginning, in their order
  unsigned long long uncorrected = 0;       // ECC errors, since the driver was loaded
  unsigned long long uncorrected_then = 0;  // the same at the beginning
  bool remap_pending = false;               // rows will be remapped at the next reset
  bool remap_failed = false;
  unsigned long long throttled = 0;  // nvmlClocksThrottleReason*
};

// ", and NVML says of its GPU (GPU-1b4e...): Xid 79 (it has fallen off the bus), 2 uncorrected ECC
// errors"; "": nothing is wrong. Pure.
std::string describe_trouble(const GpuState& state);

class GpuHealth {
 public:
  // library: a file, empty for the system's; "none": nothing is ever known.
  explicit GpuHealth(const std::string& library);
  ~GpuHealth();
  GpuHealth(const GpuHealth&) = delete;
  GpuHealth& operator=(const GpuHealth&) = delete;

  // Of the GPU that a rank which has failed used ("" for none). Asks anew, for `patience` at most.
  std::string hint(const std::string& uuid,
                   std::chrono::milliseconds patience = std::chrono::seconds(1));

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, GpuState> gpus;  // by their UUIDs without the first word
    unsigned long long asked = 0;
    unsigned long long answered = 0;
    bool ending = false;
    bool ended = false;
  };
  static void watch(const std::shared_ptr<Shared>& shared, const std::string& library);

  std::shared_ptr<Shared> shared_;  // null: nothing is known
};

}  // namespace rueda::launcher

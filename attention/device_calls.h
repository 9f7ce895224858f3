// Calls on tensors of a GPU: the executor runs the program, the caller's kernels do the work. What
// is called back gives everything to one stream and waits for nothing; so does this. With device -1
// the same on the host's memory, which needs no stream.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/link.h"
#include "attention/plan.h"
#include "collectives/cuda/device.h"

namespace rueda::attention {

// Called back by the thread that runs the call, one at a time. place: of several ranks of one
// process; else 0.
struct DeviceKernels {
  int device = -1;
  cuda::StreamHandle stream = nullptr;
  void* user = nullptr;
  // Memory of a slot of the program, on the device, that may be used in the stream; null: there is
  // none left.
  void* (*take)(void* user, int32_t place, int32_t slot, int64_t bytes) = nullptr;
  // What the stream is given from here on may use it for something else.
  void (*give)(void* user, int32_t place, int32_t slot) = nullptr;
  // The work of an instruction. Not 0: it failed.
  int32_t (*perform)(void* user, int32_t place, int32_t number) = nullptr;
  // Where take and perform have said why they failed, with its 0; null: they do not say.
  const char* reason = nullptr;
  size_t reason_bytes = 0;
};

// "what: why", as far as the kernels have said why.
std::string with_reason(std::string what, const DeviceKernels& kernels);

// One rank's. The plan's programs are those that keep out.
Status run_on_device(const AttentionPlan& plan, bool backward, Link* link,
                     const DeviceKernels& kernels);

// All ranks' of one process, one plan for each; messages are copies in a stream of their own.
// device: null where the kernels' is -1. sent: bytes, of each rank.
Status run_virtual(std::span<const AttentionPlan* const> plans, bool backward,
                   cuda::DevicePtr device, const DeviceKernels& kernels,
                   std::vector<int64_t>* sent);

}  // namespace rueda::attention

// The few calls of NVML that the agent makes, with its types as nvml.h declares them.
#pragma once

#include <dlfcn.h>

#include <memory>

#include "launcher/processes/symbol.h"

struct nvmlDevice_st;
struct nvmlEventSet_st;

namespace rueda::launcher::nvml {

using Device = nvmlDevice_st*;
using EventSet = nvmlEventSet_st*;

inline constexpr int kSuccess = 0;
inline constexpr unsigned long long kXidEvent = 0x8;
inline constexpr int kUncorrected = 1;  // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
inline constexpr int kVolatile = 0;     // NVML_VOLATILE_ECC: since the driver was loaded
// nvmlClocksThrottleReason*
inline constexpr unsigned long long kHardwareSlowdown = 0x8;
inline constexpr unsigned long long kSoftwareThermal = 0x20;
inline constexpr unsigned long long kHardwareThermal = 0x40;
inline constexpr unsigned long long kPowerBrake = 0x80;

struct EventData {
  Device device;
  unsigned long long type;
  unsigned long long data;  // of an Xid event: its number
  unsigned gpu_instance;
  unsigned compute_instance;
};

inline constexpr unsigned kWholeGpu = 0xffffffff;  // instance of an event that is of no MIG part

// X(member, symbol, arguments). The first four are needed, the others are done without.
#define RUEDA_NVML_FUNCTIONS(X)                                                                    \
  X(init, nvmlInit_v2, (void))                                                                     \
  X(count, nvmlDeviceGetCount_v2, (unsigned* count))                                               \
  X(device, nvmlDeviceGetHandleByIndex_v2, (unsigned index, Device* device))                       \
  X(uuid, nvmlDeviceGetUUID, (Device device, char* text, unsigned room))                           \
  X(most_parts, nvmlDeviceGetMaxMigDeviceCount, (Device device, unsigned* count))                  \
  X(part, nvmlDeviceGetMigDeviceHandleByIndex, (Device device, unsigned index, Device* part))      \
  X(instance, nvmlDeviceGetGpuInstanceId, (Device part, unsigned* id))                             \
  X(ecc, nvmlDeviceGetTotalEccErrors,                                                              \
    (Device device, int type, int counter, unsigned long long* count))                             \
  X(remapped, nvmlDeviceGetRemappedRows,                                                           \
    (Device device, unsigned* correctable, unsigned* uncorrectable, unsigned* pending,             \
     unsigned* failed))                                                                            \
  X(throttle, nvmlDeviceGetCurrentClocksThrottleReasons,                                           \
    (Device device, unsigned long long* bits))                                                     \
  X(make_events, nvmlEventSetCreate, (EventSet * set))                                             \
  X(add_events, nvmlDeviceRegisterEvents, (Device device, unsigned long long types, EventSet set)) \
  X(wait, nvmlEventSetWait_v2, (EventSet set, EventData * data, unsigned milliseconds))

struct Functions {
#define RUEDA_X(member, symbol, arguments) int(*member) arguments = nullptr;
  RUEDA_NVML_FUNCTIONS(RUEDA_X)
#undef RUEDA_X
};

// Null: it cannot be used. It stays open until the process ends.
inline std::unique_ptr<Functions> open(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto functions = std::make_unique<Functions>();
#define RUEDA_X(member, name, arguments) \
  functions->member = symbol<decltype(functions->member)>(library, #name);
  RUEDA_NVML_FUNCTIONS(RUEDA_X)
#undef RUEDA_X
  const bool usable = functions->init != nullptr && functions->count != nullptr &&
                      functions->device != nullptr && functions->uuid != nullptr;
  if (!usable || functions->init() != kSuccess) return nullptr;
  return functions;
}

}  // namespace rueda::launcher::nvml

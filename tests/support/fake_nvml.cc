// fake_nvml.so: NVML without a GPU. FAKE_NVML="GPU-...=xid:79,ecc:2,throttle:64,pending:1" is one
// GPU in trouble; ECC errors come after the first look. A second GPU, "GPU-sound", has none.
// FAKE_NVML_PARTS="MIG-a MIG-b": the first is cut into instances 1 and 2; "instance:2" in
// FAKE_NVML: the Xid error is of that one.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>

#include "launcher/agent/nvml.h"

struct nvmlDevice_st {
  const char* uuid;
};
struct nvmlEventSet_st {};

namespace {

nvmlDevice_st devices[2] = {{""}, {"GPU-sound"}};
nvmlEventSet_st events;
std::string uuid;
std::atomic<int> looks{0};
std::atomic<bool> told{false};
std::string part_uuids[2];
nvmlDevice_st parts[2];

unsigned long long number_of(const char* name) {
  const char* const text = std::getenv("FAKE_NVML");
  const char* const at = text == nullptr ? nullptr : std::strstr(text, name);
  return at == nullptr ? 0 : std::strtoull(at + std::strlen(name), nullptr, 10);
}

bool in_trouble(rueda::launcher::nvml::Device device) { return device == &devices[0]; }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace rueda::launcher::nvml;

EXPORT int nvmlInit_v2() {
  const char* const text = std::getenv("FAKE_NVML");
  if (text == nullptr) return 9;  // the driver is not loaded
  uuid = std::string(text).substr(0, std::string(text).find('='));
  devices[0].uuid = uuid.c_str();
  told = false;
  looks = 0;
  const char* const cut = std::getenv("FAKE_NVML_PARTS");
  std::istringstream names(cut == nullptr ? "" : cut);
  for (size_t i = 0; i < 2; ++i) {
    part_uuids[i].clear();
    names >> part_uuids[i];
    parts[i].uuid = part_uuids[i].c_str();
  }
  return 0;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  *device = &devices[index];
  return 0;
}
EXPORT int nvmlDeviceGetUUID(Device device, char* text, unsigned room) {
  std::snprintf(text, room, "%s", device->uuid);
  return 0;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Device, unsigned* count) {
  *count = 7;
  return 0;
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device* part) {
  if (!in_trouble(device) || index >= 2 || part_uuids[index].empty()) return 6;  // not found
  *part = &parts[index];
  return 0;
}
EXPORT int nvmlDeviceGetGpuInstanceId(Device part, unsigned* id) {
  *id = static_cast<unsigned>(part - parts) + 1;
  return 0;
}
EXPORT int nvmlDeviceGetTotalEccErrors(Device device, int type, int counter,
                                       unsigned long long* count) {
  if (type != kUncorrected || counter != kVolatile) return 2;
  *count = 5;
  if (in_trouble(device) && looks++ > 0) *count += number_of("ecc:");
  return 0;
}
EXPORT int nvmlDeviceGetRemappedRows(Device device, unsigned* correctable, unsigned* uncorrectable,
                                     unsigned* pending, unsigned* failed) {
  *correctable = *uncorrectable = 0;
  *pending = in_trouble(device) ? static_cast<unsigned>(number_of("pending:")) : 0;
  *failed = in_trouble(device) ? static_cast<unsigned>(number_of("failed:")) : 0;
  return 0;
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* bits) {
  *bits = in_trouble(device) ? number_of("throttle:") : 4;  // a power cap is nothing special
  return 0;
}
EXPORT int nvmlEventSetCreate(EventSet* set) {
  *set = &events;
  return 0;
}
EXPORT int nvmlDeviceRegisterEvents(Device, unsigned long long types, EventSet) {
  return types == kXidEvent ? 0 : 2;
}
EXPORT int nvmlEventSetWait_v2(EventSet, EventData* data, unsigned milliseconds) {
  if (number_of("xid:") != 0 && !told.exchange(true)) {
    const auto instance = static_cast<unsigned>(number_of("instance:"));
    *data = {&devices[0], kXidEvent, number_of("xid:"), instance == 0 ? kWholeGpu : instance, 0};
    return 0;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return 10;  // a timeout
}

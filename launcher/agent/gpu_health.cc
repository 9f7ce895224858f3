#include "launcher/agent/gpu_health.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "launcher/agent/nvml.h"

namespace rueda::launcher {
namespace {

constexpr unsigned kEventMilliseconds = 100;
constexpr std::chrono::seconds kBetweenLooks{2};

// What people ask about most; https://docs.nvidia.com/deploy/xid-errors has the others.
const char* meaning_of(unsigned long long xid) {
  switch (xid) {
    case 13: return "an exception in a kernel";
    case 31: return "a kernel used an address that it may not";
    case 43: return "the GPU stopped processing";
    case 48: return "a double-bit ECC error";
    case 63: return "a memory row is remapped";
    case 64: return "a memory row could not be remapped";
    case 74: return "NVLink";
    case 79: return "it has fallen off the bus";
    case 94: return "a contained ECC error";
    case 95: return "an uncontained ECC error";
    case 119:
    case 120: return "its firmware does not answer";
    default: return "";
  }
}

std::string counted_xid(unsigned long long xid, size_t times) {
  const std::string meaning = meaning_of(xid);
  return "Xid " + std::to_string(xid) + (meaning.empty() ? "" : " (" + meaning + ")") +
         (times > 1 ? ", " + std::to_string(times) + " times" : "");
}

// One GPU as NVML has it, or a part of one (MIG), whose health is the GPU's.
struct Known {
  nvml::Device device = nullptr;  // the whole GPU
  std::string uuid;
  std::string whole;                    // of a part: the GPU's UUID
  unsigned instance = nvml::kWholeGpu;  // of a part

  bool is_part() const { return !whole.empty(); }
  bool is_concerned(const nvml::EventData& event) const {
    const bool by_all = event.gpu_instance == nvml::kWholeGpu || !is_part();
    return device == event.device && (by_all || instance == event.gpu_instance);
  }
};

// "GPU-5a.." and "MIG-5a.." are the same: of a part the driver gives the digits alone.
std::string digits_of(const std::string& uuid) { return uuid.substr(uuid.find('-') + 1); }

// What it says now; what it does not know stays as it was.
void look(const nvml::Functions& nvml, const Known& gpu, GpuState* state) {
  unsigned long long errors = 0;
  if (nvml.ecc != nullptr &&
      nvml.ecc(gpu.device, nvml::kUncorrected, nvml::kVolatile, &errors) == nvml::kSuccess)
    state->uncorrected = errors;
  unsigned correctable = 0, uncorrectable = 0, pending = 0, failed = 0;
  if (nvml.remapped != nullptr && nvml.remapped(gpu.device, &correctable, &uncorrectable, &pending,
                                                &failed) == nvml::kSuccess) {
    state->remap_pending = pending != 0;
    state->remap_failed = failed != 0;
  }
  unsigned long long reasons = 0;
  if (nvml.throttle != nullptr && nvml.throttle(gpu.device, &reasons) == nvml::kSuccess)
    state->throttled = reasons;
}

std::string uuid_of(const nvml::Functions& nvml, nvml::Device device) {
  char uuid[96] = "";
  return nvml.uuid(device, uuid, sizeof(uuid)) == nvml::kSuccess ? uuid : "";
}

void add_parts(const nvml::Functions& nvml, const Known& gpu, std::vector<Known>* gpus) {
  unsigned most = 0;
  if (nvml.most_parts == nullptr || nvml.part == nullptr || nvml.instance == nullptr ||
      nvml.most_parts(gpu.device, &most) != nvml::kSuccess)
    return;
  for (unsigned index = 0; index < most; ++index) {
    nvml::Device part = nullptr;
    Known known{gpu.device, "", gpu.uuid, nvml::kWholeGpu};
    if (nvml.part(gpu.device, index, &part) != nvml::kSuccess ||
        nvml.instance(part, &known.instance) != nvml::kSuccess)
      continue;
    known.uuid = uuid_of(nvml, part);
    if (!known.uuid.empty()) gpus->push_back(std::move(known));
  }
}

std::vector<Known> all_gpus(const nvml::Functions& nvml) {
  std::vector<Known> gpus;
  unsigned count = 0;
  if (nvml.count(&count) != nvml::kSuccess) return gpus;
  for (unsigned index = 0; index < count; ++index) {
    Known gpu;
    if (nvml.device(index, &gpu.device) != nvml::kSuccess) continue;
    gpu.uuid = uuid_of(nvml, gpu.device);
    if (gpu.uuid.empty()) continue;
    gpus.push_back(gpu);
    add_parts(nvml, gpu, &gpus);
  }
  return gpus;
}

}  // namespace

std::string describe_trouble(const GpuState& state) {
  std::vector<std::string> found;
  std::vector<unsigned long long> said;
  for (const unsigned long long xid : state.xids) {
    if (std::find(said.begin(), said.end(), xid) != said.end()) continue;
    said.push_back(xid);
    const auto times = std::count(state.xids.begin(), state.xids.end(), xid);
    found.push_back(counted_xid(xid, static_cast<size_t>(times)));
  }
  if (state.uncorrected > state.uncorrected_then) {
    const unsigned long long more = state.uncorrected - state.uncorrected_then;
    found.push_back(std::to_string(more) + " uncorrected ECC error" + (more == 1 ? "" : "s"));
  }
  if (state.remap_failed) found.emplace_back("a memory row could not be remapped: replace it");
  if (state.remap_pending) found.emplace_back("memory rows wait to be remapped: reset it");
  const unsigned long long hot = nvml::kSoftwareThermal | nvml::kHardwareThermal;
  if ((state.throttled & hot) != 0) {
    found.emplace_back("its clocks are held down by heat");
  } else if ((state.throttled & nvml::kPowerBrake) != 0) {
    found.emplace_back("its clocks are held down by the power supply");
  } else if ((state.throttled & nvml::kHardwareSlowdown) != 0) {
    found.emplace_back("its clocks are held down by the hardware");
  }
  std::string text;
  for (const std::string& each : found) text += (text.empty() ? "" : ", ") + each;
  return text.empty() ? "" : ", and NVML says of its GPU (" + state.uuid + "): " + text;
}

GpuHealth::GpuHealth(const std::string& library) {
  if (library == "none") return;
  shared_ = std::make_shared<Shared>();
  std::thread([shared = shared_, library] { watch(shared, library); }).detach();
}

GpuHealth::~GpuHealth() {
  if (shared_ == nullptr) return;
  std::unique_lock lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, std::chrono::seconds(1), [this] { return shared_->ended; });
}

void GpuHealth::watch(const std::shared_ptr<Shared>& shared, const std::string& library) {
  const auto end = [&] {
    const std::lock_guard lock(shared->mutex);
    shared->ended = true;
    shared->changed.notify_all();
  };
  const auto nvml = nvml::open(library.empty() ? "libnvidia-ml.so.1" : library.c_str());
  const std::vector<Known> gpus = nvml == nullptr ? std::vector<Known>() : all_gpus(*nvml);
  if (gpus.empty()) return end();
  nvml::EventSet events = nullptr;
  bool has_events = nvml->make_events != nullptr && nvml->add_events != nullptr &&
                    nvml->wait != nullptr && nvml->make_events(&events) == nvml::kSuccess;
  bool any = false;
  std::map<std::string, GpuState> now;
  for (const Known& gpu : gpus) {
    any |= has_events && !gpu.is_part() &&
           nvml->add_events(gpu.device, nvml::kXidEvent, events) == nvml::kSuccess;
    GpuState& state = now[digits_of(gpu.uuid)];
    state.uuid = gpu.uuid + (gpu.is_part() ? ", a part of " + gpu.whole : "");
    look(*nvml, gpu, &state);
    state.uncorrected_then = state.uncorrected;
  }
  has_events = any;
  auto next_look = std::chrono::steady_clock::now();
  for (;;) {
    nvml::EventData event{};
    if (has_events && nvml->wait(events, &event, kEventMilliseconds) == nvml::kSuccess) {
      for (const Known& gpu : gpus) {
        if (gpu.is_concerned(event)) now[digits_of(gpu.uuid)].xids.push_back(event.data);
      }
      continue;  // there may be more
    }
    unsigned long long asked = 0;
    {
      std::unique_lock lock(shared->mutex);
      if (!has_events) {
        shared->changed.wait_until(
            lock, next_look, [&] { return shared->ending || shared->asked > shared->answered; });
      }
      if (shared->ending) break;
      asked = shared->asked;
      if (asked == shared->answered && std::chrono::steady_clock::now() < next_look) continue;
    }
    for (const Known& gpu : gpus) look(*nvml, gpu, &now[digits_of(gpu.uuid)]);
    next_look = std::chrono::steady_clock::now() + kBetweenLooks;
    const std::lock_guard lock(shared->mutex);
    shared->gpus = now;
    shared->answered = asked;
    shared->changed.notify_all();
  }
  end();
}

std::string GpuHealth::hint(const std::string& uuid, std::chrono::milliseconds patience) {
  if (shared_ == nullptr || uuid.empty()) return "";
  std::unique_lock lock(shared_->mutex);
  const unsigned long long asked = ++shared_->asked;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, patience,
                            [&] { return shared_->ended || shared_->answered >= asked; });
  const auto known = shared_->gpus.find(digits_of(uuid));
  return known == shared_->gpus.end() ? "" : describe_trouble(known->second);
}

}  // namespace rueda::launcher

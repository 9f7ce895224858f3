#include "collectives/cuda/device.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace rueda::cuda {

std::string to_string(const Uuid& uuid, const std::string& name) {
  std::string text = name.find(" MIG ") == std::string::npos ? "GPU" : "MIG";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

Result<DevicePtr> Device::open(std::shared_ptr<const DriverApi> driver, int ordinal) {
  DevicePtr device(new Device(std::move(driver), ordinal));
  const DriverApi& d = *device->driver_;
  int count = 0;
  RUEDA_RETURN_IF_ERROR(d.check(d->device_count(&count), "cuDeviceGetCount"));
  if (ordinal < 0 || ordinal >= count) {
    return invalid_argument("there is no GPU " + std::to_string(ordinal) + ": this process sees " +
                            std::to_string(count) + " (CUDA_VISIBLE_DEVICES)");
  }
  RUEDA_RETURN_IF_ERROR(d.check(d->device_get(&device->handle_, ordinal), "cuDeviceGet"));
  char name[128] = "";
  RUEDA_RETURN_IF_ERROR(
      d.check(d->device_name(name, sizeof(name) - 1, device->handle_), "cuDeviceGetName"));
  device->name_ = name;
  Uuid uuid{};
  RUEDA_RETURN_IF_ERROR(d.check(d->device_uuid(&uuid, device->handle_), "cuDeviceGetUuid_v2"));
  device->uuid_ = to_string(uuid, device->name_);
  int major = 0;
  int minor = 0;
  for (const auto& [number, attribute] :
       {std::pair{&major, kCapabilityMajor}, std::pair{&minor, kCapabilityMinor}}) {
    RUEDA_RETURN_IF_ERROR(
        d.check(d->device_attribute(number, attribute, device->handle_), "cuDeviceGetAttribute"));
  }
  device->capability_ = 10 * major + minor;
  RUEDA_RETURN_IF_ERROR(
      d.check(d->retain_context(&device->context_, device->handle_), "cuDevicePrimaryCtxRetain"));
  return device;
}

Result<EventHandle> Device::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!spare_events_.empty()) {
      const EventHandle event = spare_events_.back();
      spare_events_.pop_back();
      return event;
    }
  }
  const ContextScope scope(*this);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const BesideCaptures beside(*driver_);
  EventHandle event = nullptr;
  RUEDA_RETURN_IF_ERROR(
      driver_->check((*driver_)->event_create(&event, kEventDisableTiming), "cuEventCreate"));
  return event;
}

void Device::give_event(EventHandle event) {
  const std::lock_guard lock(mutex_);
  spare_events_.push_back(event);
}

Device::~Device() {
  if (!spare_events_.empty()) {
    const ContextScope scope(*this);
    for (const EventHandle event : spare_events_) (*driver_)->event_destroy(event);
  }
  if (context_ != nullptr) (*driver_)->release_context(handle_);
}

ContextScope::ContextScope(const Device& device) : driver_(device.driver()) {
  status_ = driver_.check(driver_->push_context(device.context()), "cuCtxPushCurrent");
}

ContextScope::~ContextScope() {
  Context gone = nullptr;
  if (status_.ok()) driver_->pop_context(&gone);
}

Result<EventPtr> Event::create(DevicePtr device) {
  RUEDA_ASSIGN_OR_RETURN(const EventHandle handle, device->take_event());
  return EventPtr(new Event(std::move(device), handle));
}

Event::~Event() { device_->give_event(handle_); }

void add_mark(std::vector<Mark>* marks, const Mark& mark) {
  for (Mark& known : *marks) {
    if (mark.number == 0 || known.number == 0 || known.stream != mark.stream) continue;
    if (known.number < mark.number) known = mark;
    return;
  }
  marks->push_back(mark);
}

Status Event::record(StreamHandle stream, bool captured) {
  captured_ = captured;
  const ContextScope scope(*device_);  // a null stream means the current context's
  RUEDA_RETURN_IF_ERROR(scope.status());
  const DriverApi& d = device_->driver();
  return d.check(d->event_record(handle_, stream), "cuEventRecord");
}

Result<bool> Event::query() const {
  if (captured_) return true;
  const ContextScope scope(*device_);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const DriverApi& d = device_->driver();
  const BesideCaptures beside(d);
  const Code code = d->event_query(handle_);
  if (code == kNotReady) return false;
  RUEDA_RETURN_IF_ERROR(d.check(code, "cuEventQuery"));
  return true;
}

Status Event::wait() const {
  if (captured_) {
    return failed_precondition(
        "its work is captured into a CUDA graph and runs when the graph is launched: the host "
        "cannot wait "
        "for it; start it without waiting, and let the stream wait");
  }
  const ContextScope scope(*device_);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const DriverApi& d = device_->driver();
  const BesideCaptures beside(d);
  return d.check(d->event_wait(handle_), "cuEventSynchronize");
}

Status Event::make_wait(StreamHandle stream) const {
  const ContextScope scope(*device_);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const DriverApi& d = device_->driver();
  return d.check(d->stream_wait(stream, handle_, 0), "cuStreamWaitEvent");
}

Result<std::unique_ptr<Stream>> Stream::create(DevicePtr device) {
  const ContextScope scope(*device);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const DriverApi& d = device->driver();
  const BesideCaptures beside(d);
  int least = 0;
  int greatest = 0;
  RUEDA_RETURN_IF_ERROR(d.check(d->priorities(&least, &greatest), "cuCtxGetStreamPriorityRange"));
  StreamHandle handle = nullptr;
  RUEDA_RETURN_IF_ERROR(d.check(d->stream_create(&handle, kStreamNonBlocking, greatest),
                                "cuStreamCreateWithPriority"));
  return std::unique_ptr<Stream>(new Stream(std::move(device), handle));
}

Stream::~Stream() {
  const ContextScope scope(*device_);
  device_->driver()->stream_destroy(handle_);
}

Result<std::shared_ptr<Memory>> Memory::allocate(DevicePtr device, size_t bytes) {
  const ContextScope scope(*device);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const DriverApi& d = device->driver();
  const BesideCaptures beside(d);
  Address address = 0;
  const Status got = d.check(d->allocate(&address, std::max<size_t>(bytes, 1)), "cuMemAlloc");
  if (!got.ok()) {
    return Status(rueda::Code::kResourceExhausted, std::to_string(bytes) + " bytes on GPU " +
                                                       std::to_string(device->ordinal()) + " (" +
                                                       device->name() + "): " + got.message());
  }
  return std::shared_ptr<Memory>(new Memory(std::move(device), address, bytes));
}

Memory::~Memory() {
  const ContextScope scope(*device_);
  const BesideCaptures beside(device_->driver());
  device_->driver()->free(address_);
}

}  // namespace rueda::cuda

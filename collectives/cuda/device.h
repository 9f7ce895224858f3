// Device: one GPU as this process uses it: its primary context, which frameworks use too, with
// streams and events in it.
//
// Ownership: holds the primary context; streams and events hold their device.
// Threads:   any; a Stream is used by one thread at a time.
// Failure:   the driver's own text, with the call.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "collectives/cuda/driver_api.h"

namespace rueda::cuda {

class Device {
 public:
  static Result<std::shared_ptr<Device>> open(std::shared_ptr<const DriverApi> driver, int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DriverApi& driver() const { return *driver_; }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  // "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427", as nvidia-smi prints it; of a part (MIG) "MIG-...".
  const std::string& uuid() const { return uuid_; }
  Context context() const { return context_; }
  int capability() const { return capability_; }  // 90 is 9.0

  // Events that nobody uses any more are given out again: making one costs a call of the driver.
  Result<EventHandle> take_event();
  void give_event(EventHandle event);

 private:
  Device(std::shared_ptr<const DriverApi> driver, int ordinal)
      : driver_(std::move(driver)), ordinal_(ordinal) {}

  std::shared_ptr<const DriverApi> driver_;
  const int ordinal_;
  Ordinal handle_ = 0;
  Context context_ = nullptr;
  std::string name_;
  std::string uuid_;
  int capability_ = 0;
  std::mutex mutex_;
  std::vector<EventHandle> spare_events_;
};
using DevicePtr = std::shared_ptr<Device>;

// name: the device's, which says of a part of a GPU that it is one: "NVIDIA H200 MIG 1g.18gb".
std::string to_string(const Uuid& uuid, const std::string& name = "");

// While it lives the device's context is current on this thread.
class ContextScope {
 public:
  explicit ContextScope(const Device& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  const Status& status() const { return status_; }

 private:
  const DriverApi& driver_;
  Status status_;
};

// While it lives this thread may make calls that CUDA forbids while any stream is captured into a
// graph (making things, asking events): ours have nothing to do with what is captured.
class BesideCaptures {
 public:
  explicit BesideCaptures(const DriverApi& driver) : driver_(driver) {
    driver_->exchange_capture_mode(&mode_);
  }
  ~BesideCaptures() { driver_->exchange_capture_mode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  const DriverApi& driver_;
  int mode_ = kCaptureRelaxed;
};

// A point in a stream. A wait that was asked for stays when the event is recorded anew.
class Event {
 public:
  static Result<std::shared_ptr<Event>> create(DevicePtr device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // What was given to the stream until now. The stream is of this device.
  // captured: into a graph; only streams of the same capture can wait for it.
  Status record(StreamHandle stream, bool captured = false);
  bool captured() const { return captured_; }
  // Reached? Never blocks. A captured one is: what it stands for is the graph's.
  Result<bool> query() const;
  // Blocks this thread until it is reached. FailedPrecondition for a captured one.
  Status wait() const;
  // Later work of the stream, of whatever device, waits for it; the host does not.
  Status make_wait(StreamHandle stream) const;
  const Device& device() const { return *device_; }

 private:
  Event(DevicePtr device, EventHandle handle) : device_(std::move(device)), handle_(handle) {}
  DevicePtr device_;
  EventHandle handle_;
  bool captured_ = false;
};
using EventPtr = std::shared_ptr<Event>;

// A point in a stream of the user's. number: grows along each stream, so that of two marks of one
// stream the later one says it all; 0: of a stream whose handle means another one on each thread.
struct Mark {
  EventPtr event;
  StreamHandle stream = nullptr;
  uint64_t number = 0;
  bool captured = false;  // the stream is being captured into a graph
};
// Adds one, unless another of the same stream covers it.
void add_mark(std::vector<Mark>* marks, const Mark& mark);

// A stream of our own, of the highest priority, that does not wait for the default stream.
class Stream {
 public:
  static Result<std::unique_ptr<Stream>> create(DevicePtr device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  StreamHandle handle() const { return handle_; }
  const DevicePtr& device() const { return device_; }

 private:
  Stream(DevicePtr device, StreamHandle handle) : device_(std::move(device)), handle_(handle) {}
  DevicePtr device_;
  StreamHandle handle_;
};

// Memory of the device. The destructor waits for what the device is doing: let go of it rarely.
class Memory {
 public:
  static Result<std::shared_ptr<Memory>> allocate(DevicePtr device, size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  size_t bytes() const { return bytes_; }

 private:
  Memory(DevicePtr device, Address address, size_t bytes)
      : device_(std::move(device)), address_(address), bytes_(bytes) {}
  DevicePtr device_;
  Address address_;
  size_t bytes_;
};

}  // namespace rueda::cuda

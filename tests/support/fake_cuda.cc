// libfake_cuda.so: a CUDA driver without a GPU, for tests. Device memory is host memory; each
// stream is a thread that does what it is given in order, so that whoever does not wait for an
// event reads too early here as on a GPU.
//
// Streams can be captured into graphs: what they are given goes into the graph, streams that wait
// for an event of a capture join it, and a launch does all of it again in the order in which it was
// captured.
//
// What a driver refuses is refused here too: calls without a current context, a stream and an event
// of different devices, whatever a capture forbids (unsafe calls of threads that do not say that
// they are beside it, events of it that the host asks for, streams that do not join again).
// FAKE_CUDA_DEVICES (8) says how many there are, FAKE_CUDA_ONE_UUID=1 gives all the same UUID,
// FAKE_CUDA_MIG=1 makes each a part of one.
// FAKE_CUDA_IDLE=1: streams do nothing and every event is reached at once, to see what the caller
// costs. fake_cuda_live() counts what has not been destroyed. fake_cuda_break(device): a kernel has
// failed there, and every later call that concerns the device's streams and events fails.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/cuda/functions.h"

using rueda::cuda::Address;
using rueda::cuda::Code;
using rueda::cuda::Uuid;

struct CUctx_st {
  std::atomic<int> device = 0;
};

namespace {

constexpr Code kInvalidValue = 1;
constexpr Code kInvalidDevice = 101;
constexpr Code kInvalidContext = 201;
constexpr Code kInvalidHandle = 400;
constexpr Code kLaunchFailed = 719;
constexpr Code kCaptureUnsupported = 900;
constexpr Code kCaptureFailed = 901;
constexpr Code kUnjoined = 904;
constexpr Code kIsolation = 905;
constexpr Code kCapturedEvent = 907;
constexpr int kMostDevices = 16;

std::atomic<int64_t> live{0};
std::atomic<int64_t> synchronizing{0};
std::atomic<bool> broken[kMostDevices];
CUctx_st contexts[kMostDevices];

// The thread's current contexts. Nothing is destroyed with the thread, which may outlive the tests.
struct Stack {
  CUctx_st* items[16];
  int depth;
  bool empty() const { return depth == 0; }
  CUctx_st* back() const { return items[depth - 1]; }
};
thread_local Stack current{};

bool is_idle() { return std::getenv("FAKE_CUDA_IDLE") != nullptr; }

int devices() {
  const char* const text = std::getenv("FAKE_CUDA_DEVICES");
  return text == nullptr ? 8 : std::atoi(text);
}

// A capture under way; and what it has made, the graph.
struct Capture {
  int mode = 0;  // 0: no thread may make unsafe calls meanwhile
  bool failed = false;
  bool ended = false;
  std::vector<std::function<void()>> nodes;
  std::vector<CUstream_st*> streams;  // the first is where it began
};
std::mutex capture_mutex;
std::vector<std::shared_ptr<Capture>> captures;  // under way
thread_local int capture_mode = 0;
// For each stream of a capture, how many of its nodes come before.
using Clock = std::map<CUstream_st*, size_t>;

// One record of an event: whoever waits for it is not concerned by later ones, which may be of
// another stream and faster.
struct Point {
  std::mutex mutex;
  std::condition_variable moved;
  bool reached = false;

  void reach() {
    const std::lock_guard lock(mutex);
    reached = true;
    moved.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    moved.wait(lock, [this] { return reached; });
  }
};

}  // namespace

struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
};

struct CUevent_st {
  int device = 0;
  std::shared_ptr<Capture> capture;  // recorded in it
  Clock clock;
  std::mutex mutex;
  std::shared_ptr<Point> last;  // null: not recorded yet

  std::shared_ptr<Point> point() {
    const std::lock_guard lock(mutex);
    return last;
  }
};

// All that there are, for who waits for a whole device.
static std::mutex streams_mutex;
static auto& streams = *new std::vector<CUstream_st*>;

struct CUstream_st {
  explicit CUstream_st(int number) : device(number), thread([this] { run(); }) {
    const std::lock_guard all(streams_mutex);
    streams.push_back(this);
  }
  ~CUstream_st() {
    {
      const std::lock_guard all(streams_mutex);
      std::erase(streams, this);
    }
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    changed.notify_all();
    thread.join();
  }
  void add(std::function<void()> work) {
    if (idle) return;
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_all();
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ending || !queue.empty(); });
      if (queue.empty()) return;
      const auto work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  const int device;
  const bool idle = is_idle();
  std::shared_ptr<Capture> capture;  // under the capture mutex, as the clock
  Clock clock;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool ending = false;
  std::thread thread;
};

namespace {

// The given stream, or the current context's default one. Null: neither.
CUstream_st* stream_of(CUstream_st* stream) {
  if (stream != nullptr) return stream;
  if (current.empty()) return nullptr;
  static std::mutex mutex;
  static auto* const defaults = new std::map<int, CUstream_st*>;  // for ever, as a driver's
  const std::lock_guard lock(mutex);
  CUstream_st*& found = (*defaults)[current.back()->device];
  if (found == nullptr) found = new CUstream_st(current.back()->device);
  return found;
}

// A call that this thread may not make while another captures.
Code unsafe() {
  const std::lock_guard lock(capture_mutex);
  if (capture_mode == 2) return 0;
  for (const auto& capture : captures) {
    if (capture->mode != 0) continue;
    capture->failed = true;
    return kCaptureUnsupported;
  }
  return 0;
}

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int64_t fake_cuda_live() { return live; }
EXPORT void fake_cuda_break(int device) { broken[device] = true; }
// Calls that have begun to wait for a whole device.
EXPORT int64_t fake_cuda_synchronizing() { return synchronizing; }

EXPORT Code cuInit(unsigned) { return 0; }
EXPORT Code cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
EXPORT Code cuGetErrorName(Code code, const char** text) {
  *text = code == kInvalidContext       ? "CUDA_ERROR_INVALID_CONTEXT"
          : code == kInvalidHandle      ? "CUDA_ERROR_INVALID_HANDLE"
          : code == kLaunchFailed       ? "CUDA_ERROR_LAUNCH_FAILED"
          : code == kCaptureUnsupported ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
          : code == kIsolation          ? "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"
          : code == kCapturedEvent      ? "CUDA_ERROR_CAPTURED_EVENT"
                                        : "CUDA_ERROR_FAKE";
  return 0;
}
EXPORT Code cuGetErrorString(Code, const char** text) {
  *text = "said by the fake driver";
  return 0;
}
EXPORT Code cuDeviceGetCount(int* count) {
  *count = devices();
  return 0;
}
EXPORT Code cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= devices()) return kInvalidDevice;
  *device = ordinal;
  return 0;
}
EXPORT Code cuDeviceGetName(char* text, int room, int device) {
  const bool part = std::getenv("FAKE_CUDA_MIG") != nullptr;
  std::snprintf(text, static_cast<size_t>(room), "fake GPU %d%s", device,
                part ? " MIG 1g.18gb" : "");
  return 0;
}
EXPORT Code cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  *uuid = {};
  if (std::getenv("FAKE_CUDA_ONE_UUID") == nullptr) uuid->bytes[15] = static_cast<char>(device + 1);
  return 0;
}
EXPORT Code cuDeviceGetAttribute(int* value, int attribute, int device) {
  // FAKE_CUDA_CAPABILITY: of the last device; 90 is 9.0.
  const char* const text = device + 1 == devices() ? std::getenv("FAKE_CUDA_CAPABILITY") : nullptr;
  const int capability = text == nullptr ? 90 : std::atoi(text);
  if (attribute != rueda::cuda::kCapabilityMajor && attribute != rueda::cuda::kCapabilityMinor)
    return kInvalidValue;
  *value = attribute == rueda::cuda::kCapabilityMajor ? capability / 10 : capability % 10;
  return 0;
}
EXPORT Code cuDevicePrimaryCtxRetain(CUctx_st** context, int device) {
  contexts[device].device = device;
  *context = &contexts[device];
  ++live;
  return 0;
}
EXPORT Code cuDevicePrimaryCtxRelease_v2(int) {
  --live;
  return 0;
}
EXPORT Code cuCtxPushCurrent_v2(CUctx_st* context) {
  if (current.depth == static_cast<int>(std::size(current.items))) return kInvalidValue;
  current.items[current.depth++] = context;
  return 0;
}
EXPORT Code cuCtxPopCurrent_v2(CUctx_st** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  --current.depth;
  return 0;
}
EXPORT Code cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return current.empty() ? kInvalidContext : 0;
}
EXPORT Code cuStreamCreateWithPriority(CUstream_st** stream, unsigned flags, int priority) {
  if (current.empty()) return kInvalidContext;
  if (flags > 1 || priority < -5 || priority > 0) return kInvalidValue;
  *stream = new CUstream_st(current.back()->device);
  ++live;
  return 0;
}
EXPORT Code cuStreamDestroy_v2(CUstream_st* stream) {
  if (current.empty()) return kInvalidContext;
  delete stream;
  --live;
  return 0;
}
EXPORT Code cuStreamWaitEvent(CUstream_st* stream, CUevent_st* event, unsigned) {
  CUstream_st* const to = stream_of(stream);
  if (to == nullptr || current.empty()) return kInvalidContext;
  if (broken[to->device]) return kLaunchFailed;
  {
    const std::lock_guard capturing(capture_mutex);
    if (event->capture != nullptr) {
      if (event->capture->ended) return kCapturedEvent;
      if (to->capture == nullptr) {
        to->capture = event->capture;
        to->capture->streams.push_back(to);
      }
      if (to->capture != event->capture) return kIsolation;
      for (const auto& [stream_before, count] : event->clock)
        to->clock[stream_before] = std::max(to->clock[stream_before], count);
      return 0;
    }
    if (to->capture != nullptr) {
      to->capture->failed = true;
      return kIsolation;
    }
  }
  if (const auto point = event->point()) to->add([point] { point->wait(); });
  return 0;
}
EXPORT Code cuEventCreate(CUevent_st** event, unsigned) {
  if (const Code code = unsafe(); code != 0) return code;
  if (current.empty()) return kInvalidContext;
  *event = new CUevent_st;
  (*event)->device = current.back()->device;
  ++live;
  return 0;
}
EXPORT Code cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  CUstream_st* const to = stream_of(stream);
  if (to == nullptr || current.empty()) return kInvalidContext;
  if (to->device != event->device) return kInvalidHandle;
  if (broken[to->device]) return kLaunchFailed;
  {
    const std::lock_guard capturing(capture_mutex);
    event->capture = to->capture;
    event->clock = to->clock;
    if (to->capture != nullptr) return 0;
  }
  const std::lock_guard lock(event->mutex);
  event->last = std::make_shared<Point>();
  to->add([point = event->last] { point->reach(); });
  return 0;
}
EXPORT Code cuEventQuery(CUevent_st* event) {
  if (current.empty()) return kInvalidContext;
  if (broken[event->device]) return kLaunchFailed;
  if (const Code code = unsafe(); code != 0) return code;
  if (event->capture != nullptr) return kCapturedEvent;
  if (is_idle()) return 0;
  const auto point = event->point();
  if (point == nullptr) return 0;
  const std::lock_guard lock(point->mutex);
  return point->reached ? 0 : rueda::cuda::kNotReady;
}
EXPORT Code cuEventSynchronize(CUevent_st* event) {
  if (current.empty()) return kInvalidContext;
  if (broken[event->device]) return kLaunchFailed;
  if (const Code code = unsafe(); code != 0) return code;
  if (event->capture != nullptr) return kCapturedEvent;
  if (is_idle()) return 0;
  if (const auto point = event->point()) point->wait();
  return 0;
}
EXPORT Code cuEventDestroy_v2(CUevent_st* event) {
  if (current.empty()) return kInvalidContext;
  delete event;
  --live;
  return 0;
}
EXPORT Code cuCtxSynchronize() {
  if (current.empty()) return kInvalidContext;
  ++synchronizing;
  {
    const std::lock_guard capturing(capture_mutex);
    if (!captures.empty()) return kCaptureUnsupported;  // whatever the mode
  }
  std::vector<std::shared_ptr<Point>> ends;
  {
    const std::lock_guard lock(streams_mutex);
    for (CUstream_st* const stream : streams) {
      if (stream->device != current.back()->device) continue;
      ends.push_back(std::make_shared<Point>());
      stream->add([end = ends.back()] { end->reach(); });
      if (stream->idle) ends.back()->reach();
    }
  }
  for (const auto& end : ends) end->wait();
  return 0;
}
EXPORT Code cuMemAlloc_v2(Address* address, size_t bytes) {
  if (const Code code = unsafe(); code != 0) return code;
  if (current.empty()) return kInvalidContext;
  *address = static_cast<Address>(reinterpret_cast<uintptr_t>(std::malloc(bytes)));
  ++live;
  return 0;
}
EXPORT Code cuMemFree_v2(Address address) {
  if (const Code code = unsafe(); code != 0) return code;
  if (current.empty()) return kInvalidContext;
  std::free(at<void>(address));
  --live;
  return 0;
}
EXPORT Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, CUstream_st* stream) {
  CUstream_st* const on = stream_of(stream);
  if (on == nullptr) return kInvalidContext;
  on->add([=] { std::memcpy(at<void>(to), at<const void>(from), bytes); });
  return 0;
}
// The stub of NCCL does its work in streams by this one.
EXPORT Code cuLaunchHostFunc(CUstream_st* stream, void (*function)(void*), void* argument) {
  CUstream_st* const on = stream_of(stream);
  if (on == nullptr) return kInvalidContext;
  {
    const std::lock_guard capturing(capture_mutex);
    if (on->capture != nullptr) {
      on->capture->nodes.push_back([=] { function(argument); });
      ++on->clock[on];
      return 0;
    }
  }
  on->add([=] { function(argument); });
  return 0;
}

// ---- captures and graphs
EXPORT Code cuStreamIsCapturing(CUstream_st* stream, int* status) {
  CUstream_st* const of = stream_of(stream);
  if (of == nullptr) return kInvalidContext;
  const std::lock_guard capturing(capture_mutex);
  *status = of->capture == nullptr ? 0 : of->capture->failed ? 2 : 1;
  return 0;
}
EXPORT Code cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return 0;
}
EXPORT Code cuStreamBeginCapture_v2(CUstream_st* stream, int mode) {
  const std::lock_guard capturing(capture_mutex);
  if (stream == nullptr || stream->capture != nullptr) return kInvalidValue;
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->streams.push_back(stream);
  stream->clock.clear();
  captures.push_back(stream->capture);
  return 0;
}
EXPORT Code cuStreamEndCapture(CUstream_st* stream, CUgraph_st** graph) {
  const std::lock_guard capturing(capture_mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->streams.front() != stream) return kInvalidValue;
  bool joined = true;
  for (CUstream_st* const member : capture->streams)
    joined = joined && stream->clock[member] >= member->clock[member];
  for (CUstream_st* const member : capture->streams) {
    member->capture = nullptr;
    member->clock.clear();
  }
  capture->ended = true;
  captures.erase(std::find(captures.begin(), captures.end(), capture));
  *graph = nullptr;
  if (capture->failed) return kCaptureFailed;
  if (!joined) return kUnjoined;
  *graph = new CUgraph_st{capture->nodes};
  return 0;
}
// Nothing has to be instantiated here.
EXPORT Code cuGraphLaunch(CUgraph_st* graph, CUstream_st* stream) {
  CUstream_st* const on = stream_of(stream);
  if (on == nullptr) return kInvalidContext;
  on->add([nodes = graph->nodes] {
    for (const auto& node : nodes) node();
  });
  return 0;
}
EXPORT Code cuGraphDestroy(CUgraph_st* graph) {
  delete graph;
  return 0;
}

// libfake_cuda.so: a CUDA driver without a GPU, for tests. Device memory is host memory; each stream
// is a thread that does what it is given in order, so that whoever does not wait for an event reads
// too early here as on a GPU.
//
// What a driver refuses is refused here too: calls without a current context, a stream and an event
// of different devices. FAKE_CUDA_DEVICES (8) says how many there are, FAKE_CUDA_ONE_UUID=1 gives all
// the same UUID. fake_cuda_live() counts what has not been destroyed.
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
constexpr int kMostDevices = 16;

std::atomic<int64_t> live{0};
CUctx_st contexts[kMostDevices];

// The thread's current contexts. Nothing is destroyed with the thread, which may outlive the tests.
struct Stack {
  CUctx_st* items[16];
  int depth;
  bool empty() const { return depth == 0; }
  CUctx_st* back() const { return items[depth - 1]; }
};
thread_local Stack current{};

int devices() {
  const char* const text = std::getenv("FAKE_CUDA_DEVICES");
  return text == nullptr ? 8 : std::atoi(text);
}

// How far an event has come.
struct Progress {
  std::mutex mutex;
  std::condition_variable moved;
  uint64_t recorded = 0;
  uint64_t reached = 0;
};

}  // namespace

struct CUevent_st {
  int device = 0;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
};

struct CUstream_st {
  explicit CUstream_st(int number) : device(number), thread([this] { run(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    changed.notify_all();
    thread.join();
  }
  void add(std::function<void()> work) {
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

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int64_t fake_cuda_live() { return live; }

EXPORT Code cuInit(unsigned) { return 0; }
EXPORT Code cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
EXPORT Code cuGetErrorName(Code code, const char** text) {
  *text = code == kInvalidContext ? "CUDA_ERROR_INVALID_CONTEXT"
          : code == kInvalidHandle ? "CUDA_ERROR_INVALID_HANDLE"
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
  std::snprintf(text, static_cast<size_t>(room), "fake GPU %d", device);
  return 0;
}
EXPORT Code cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  *uuid = {};
  if (std::getenv("FAKE_CUDA_ONE_UUID") == nullptr) uuid->bytes[15] = static_cast<char>(device + 1);
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
  delete stream;
  --live;
  return 0;
}
EXPORT Code cuStreamWaitEvent(CUstream_st* stream, CUevent_st* event, unsigned) {
  CUstream_st* const to = stream_of(stream);
  if (to == nullptr) return kInvalidContext;
  const std::lock_guard lock(event->progress->mutex);
  to->add([progress = event->progress, until = event->progress->recorded] {
    std::unique_lock waiting(progress->mutex);
    progress->moved.wait(waiting, [&] { return progress->reached >= until; });
  });
  return 0;
}
EXPORT Code cuEventCreate(CUevent_st** event, unsigned) {
  if (current.empty()) return kInvalidContext;
  *event = new CUevent_st{current.back()->device};
  ++live;
  return 0;
}
EXPORT Code cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  CUstream_st* const to = stream_of(stream);
  if (to == nullptr) return kInvalidContext;
  if (to->device != event->device) return kInvalidHandle;
  const std::lock_guard lock(event->progress->mutex);
  to->add([progress = event->progress, number = ++event->progress->recorded] {
    const std::lock_guard moving(progress->mutex);
    progress->reached = number;
    progress->moved.notify_all();
  });
  return 0;
}
EXPORT Code cuEventQuery(CUevent_st* event) {
  const std::lock_guard lock(event->progress->mutex);
  return event->progress->reached == event->progress->recorded ? 0 : rueda::cuda::kNotReady;
}
EXPORT Code cuEventSynchronize(CUevent_st* event) {
  std::unique_lock lock(event->progress->mutex);
  const uint64_t until = event->progress->recorded;
  event->progress->moved.wait(lock, [&] { return event->progress->reached >= until; });
  return 0;
}
EXPORT Code cuEventDestroy_v2(CUevent_st* event) {
  delete event;
  --live;
  return 0;
}
EXPORT Code cuMemAlloc_v2(Address* address, size_t bytes) {
  if (current.empty()) return kInvalidContext;
  *address = static_cast<Address>(reinterpret_cast<uintptr_t>(std::malloc(bytes)));
  ++live;
  return 0;
}
EXPORT Code cuMemFree_v2(Address address) {
  std::free(at<void>(address));
  --live;
  return 0;
}
// The stub of NCCL does its work in streams by this one.
EXPORT Code cuLaunchHostFunc(CUstream_st* stream, void (*function)(void*), void* argument) {
  CUstream_st* const on = stream_of(stream);
  if (on == nullptr) return kInvalidContext;
  on->add([=] { function(argument); });
  return 0;
}

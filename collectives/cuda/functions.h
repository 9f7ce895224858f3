// The few calls of the CUDA driver that rueda makes, with its types as cuda.h declares them, so
// that rueda is built without CUDA. tests/cuda/headers_test.cc compares them with cuda.h where it
// is.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUctx_st;
struct CUevent_st;
struct CUstream_st;

namespace rueda::cuda {

using Code = int;                    // CUresult
using Ordinal = int;                 // CUdevice
using Context = CUctx_st*;           // CUcontext
using EventHandle = CUevent_st*;     // CUevent
using StreamHandle = CUstream_st*;   // CUstream, cudaStream_t; null: the default stream
using Address = unsigned long long;  // CUdeviceptr

struct Uuid {
  char bytes[16];
};

inline constexpr Code kSuccess = 0;
inline constexpr Code kNoDevice = 100;
inline constexpr Code kNotReady = 600;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
// CUstreamCaptureStatus, CUstreamCaptureMode
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureInvalidated = 2;
inline constexpr int kCaptureRelaxed = 2;
// CUdevice_attribute: the compute capability's numbers
inline constexpr int kCapabilityMajor = 75;
inline constexpr int kCapabilityMinor = 76;
// A handle that stands for the calling thread's own default stream (CU_STREAM_PER_THREAD).
inline constexpr uintptr_t kPerThreadStream = 2;

// X(member, symbol, arguments). All are in every driver since CUDA 11.4.
#define RUEDA_CUDA_FUNCTIONS(X)                                                               \
  X(init, cuInit, (unsigned flags))                                                           \
  X(driver_version, cuDriverGetVersion, (int* version))                                       \
  X(error_name, cuGetErrorName, (Code code, const char** text))                               \
  X(error_string, cuGetErrorString, (Code code, const char** text))                           \
  X(device_count, cuDeviceGetCount, (int* count))                                             \
  X(device_get, cuDeviceGet, (Ordinal * device, int ordinal))                                 \
  X(device_name, cuDeviceGetName, (char* text, int room, Ordinal device))                     \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, Ordinal device))      \
  X(device_uuid, cuDeviceGetUuid_v2, (Uuid * uuid, Ordinal device))                           \
  X(retain_context, cuDevicePrimaryCtxRetain, (Context * context, Ordinal device))            \
  X(release_context, cuDevicePrimaryCtxRelease_v2, (Ordinal device))                          \
  X(push_context, cuCtxPushCurrent_v2, (Context context))                                     \
  X(pop_context, cuCtxPopCurrent_v2, (Context * context))                                     \
  X(priorities, cuCtxGetStreamPriorityRange, (int* least, int* greatest))                     \
  X(stream_create, cuStreamCreateWithPriority,                                                \
    (StreamHandle * stream, unsigned flags, int priority))                                    \
  X(stream_destroy, cuStreamDestroy_v2, (StreamHandle stream))                                \
  X(stream_wait, cuStreamWaitEvent, (StreamHandle stream, EventHandle event, unsigned flags)) \
  X(stream_is_capturing, cuStreamIsCapturing, (StreamHandle stream, int* status))             \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))                    \
  X(event_create, cuEventCreate, (EventHandle * event, unsigned flags))                       \
  X(event_record, cuEventRecord, (EventHandle event, StreamHandle stream))                    \
  X(event_query, cuEventQuery, (EventHandle event))                                           \
  X(event_wait, cuEventSynchronize, (EventHandle event))                                      \
  X(event_destroy, cuEventDestroy_v2, (EventHandle event))                                    \
  X(synchronize, cuCtxSynchronize, (void))                                                    \
  X(allocate, cuMemAlloc_v2, (Address * address, size_t bytes))                               \
  X(free, cuMemFree_v2, (Address address))                                                    \
  X(copy_on_device, cuMemcpyDtoDAsync_v2,                                                     \
    (Address to, Address from, size_t bytes, StreamHandle stream))

struct Functions {
#define RUEDA_X(member, symbol, arguments) Code(*member) arguments = nullptr;
  RUEDA_CUDA_FUNCTIONS(RUEDA_X)
#undef RUEDA_X
};

}  // namespace rueda::cuda

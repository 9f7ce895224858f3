// NVTX's injection interface, as nvtx3/nvtxDetail/nvtxTypes.h declares it, so that rueda is built
// without CUDA. tests/cuda/nvtx_header_test.cc compares it with the real header where that is.
//
// A profiler is a library that exports kInitialize. Who wants to be seen opens it and calls that
// with a function that gives tables of function pointers, where the profiler writes its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rueda::timeline::nvtx {

inline constexpr const char* kInitialize = "InitializeInjectionNvtx2";
inline constexpr uint32_t kVersion = 3;

// NvtxExportTableID
inline constexpr uint32_t kCallbacks = 1;
inline constexpr uint32_t kVersionInfo = 3;

// NvtxCallbackModule: the one that we call, and how many entries each has (the first is none).
inline constexpr int kCore2 = 5;
inline constexpr unsigned kEntries[] = {0, 16, 9, 15, 7, 16, 7};
inline constexpr int kModules = 7;
inline constexpr unsigned kMostEntries = 16;

// NvtxCallbackIdCore2
inline constexpr int kDomainMark = 1;
inline constexpr int kDomainRangeStart = 2;
inline constexpr int kDomainRangeEnd = 3;
inline constexpr int kDomainCreate = 12;
inline constexpr int kDomainDestroy = 14;

using Function = void (*)();
using Domain = void*;  // nvtxDomainHandle_t
using RangeId = uint64_t;

// nvtxEventAttributes_t
struct Attributes {
  uint16_t version = kVersion;
  uint16_t size = sizeof(Attributes);
  uint32_t category = 0;
  int32_t color_type = 0;
  uint32_t color = 0;
  int32_t payload_type = 0;
  int32_t reserved = 0;
  uint64_t payload = 0;
  int32_t message_type = 1;  // NVTX_MESSAGE_TYPE_ASCII
  const char* message = nullptr;
};
inline constexpr int32_t kPayloadUnsigned64 = 1;  // NVTX_PAYLOAD_TYPE_UNSIGNED_INT64

struct Callbacks {  // NvtxExportTableCallbacks
  size_t size = sizeof(Callbacks);
  int (*table_of)(int module, Function*** table, unsigned* entries);
};
struct VersionInfo {  // NvtxExportTableVersionInfo
  size_t size = sizeof(VersionInfo);
  uint32_t version = kVersion;
  uint32_t reserved = 0;
  void (*tell_version)(uint32_t version);
};

using ExportTable = const void* (*)(uint32_t id);
using Initialize = int (*)(ExportTable tables);

using Mark = void (*)(Domain domain, const Attributes* what);
using RangeStart = RangeId (*)(Domain domain, const Attributes* what);
using RangeEnd = void (*)(Domain domain, RangeId range);
using DomainCreate = Domain (*)(const char* name);
using DomainDestroy = void (*)(Domain domain);

}  // namespace rueda::timeline::nvtx

// Our own declarations of NVTX's injection interface against NVIDIA's header, where that is.
#include <type_traits>

#include "runtime/observe/timeline/nvtx_functions.h"

#if defined(HAVE_CUDA_H) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace {

namespace mine = rueda::timeline::nvtx;

static_assert(mine::kVersion == NVTX_VERSION);
static_assert(mine::kCallbacks == NVTX_ETID_CALLBACKS &&
              mine::kVersionInfo == NVTX_ETID_VERSIONINFO);
static_assert(mine::kCore2 == NVTX_CB_MODULE_CORE2 && mine::kModules == NVTX_CB_MODULE_SIZE);
static_assert(mine::kEntries[NVTX_CB_MODULE_CORE] == NVTX_CBID_CORE_SIZE &&
              mine::kEntries[NVTX_CB_MODULE_CUDA] == NVTX_CBID_CUDA_SIZE &&
              mine::kEntries[NVTX_CB_MODULE_OPENCL] == NVTX_CBID_OPENCL_SIZE &&
              mine::kEntries[NVTX_CB_MODULE_CUDART] == NVTX_CBID_CUDART_SIZE &&
              mine::kEntries[NVTX_CB_MODULE_CORE2] == NVTX_CBID_CORE2_SIZE &&
              mine::kEntries[NVTX_CB_MODULE_SYNC] == NVTX_CBID_SYNC_SIZE);
static_assert(mine::kDomainMark == NVTX_CBID_CORE2_DomainMarkEx &&
              mine::kDomainRangeStart == NVTX_CBID_CORE2_DomainRangeStartEx &&
              mine::kDomainRangeEnd == NVTX_CBID_CORE2_DomainRangeEnd &&
              mine::kDomainCreate == NVTX_CBID_CORE2_DomainCreateA &&
              mine::kDomainDestroy == NVTX_CBID_CORE2_DomainDestroy);
static_assert(sizeof(mine::Attributes) == sizeof(nvtxEventAttributes_t) &&
              offsetof(mine::Attributes, payload_type) ==
                  offsetof(nvtxEventAttributes_t, payloadType) &&
              offsetof(mine::Attributes, payload) == offsetof(nvtxEventAttributes_t, payload) &&
              offsetof(mine::Attributes, message_type) ==
                  offsetof(nvtxEventAttributes_t, messageType) &&
              offsetof(mine::Attributes, message) == offsetof(nvtxEventAttributes_t, message));
static_assert(mine::Attributes{}.message_type == NVTX_MESSAGE_TYPE_ASCII &&
              mine::kPayloadUnsigned64 == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64);
static_assert(sizeof(mine::Callbacks) == sizeof(NvtxExportTableCallbacks) &&
              offsetof(mine::Callbacks, table_of) ==
                  offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable));
static_assert(sizeof(mine::VersionInfo) == sizeof(NvtxExportTableVersionInfo) &&
              offsetof(mine::VersionInfo, version) ==
                  offsetof(NvtxExportTableVersionInfo, version) &&
              offsetof(mine::VersionInfo, tell_version) ==
                  offsetof(NvtxExportTableVersionInfo, SetInjectionNvtxVersion));
static_assert(sizeof(mine::RangeId) == sizeof(nvtxRangeId_t) &&
              sizeof(mine::Domain) == sizeof(nvtxDomainHandle_t));

}  // namespace
#endif

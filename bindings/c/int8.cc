// The doors of int8 compression on GPUs.
#include "bindings/c/context.h"
#include "collectives/nccl/int8_blocks.h"

using rueda::Status;
using rueda::c_abi::guarded;
using rueda::c_abi::use;

namespace {

Status check_call(const void* from, const void* to, int64_t blocks, int32_t device) {
  if (blocks < 0 || device < 0 || (blocks > 0 && (from == nullptr || to == nullptr)))
    return rueda::invalid_argument(
        "int8 compression needs a GPU, its memory, and blocks to work on");
  return {};
}

rueda::nccl::Machine* machine_of(const rueda::c_abi::MemberPtr& member) {
  return &member->runtime->machine();
}

}  // namespace

extern "C" {

int32_t rueda_int8_quantize(rueda_context* context, const float* from, int8_t* to, int64_t blocks,
                            int32_t device, void* stream, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, use(context));
    RUEDA_RETURN_IF_ERROR(check_call(from, to, blocks, device));
    return rueda::nccl::int8_quantize(machine_of(member), from, to, blocks, device,
                                      static_cast<rueda::cuda::StreamHandle>(stream));
  });
}

int32_t rueda_int8_dequantize(rueda_context* context, const int8_t* from, float* to, int64_t blocks,
                              int32_t device, void* stream, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, use(context));
    RUEDA_RETURN_IF_ERROR(check_call(from, to, blocks, device));
    return rueda::nccl::int8_dequantize(machine_of(member), from, to, blocks, device,
                                        static_cast<rueda::cuda::StreamHandle>(stream));
  });
}

}  // extern "C"

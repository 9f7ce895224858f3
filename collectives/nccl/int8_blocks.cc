#include "collectives/nccl/int8_blocks.h"

namespace rueda::nccl {
namespace {

template <typename Launch>
Status with_kernels(nccl::Machine* machine, int device, const char* what, Launch launch) {
  RUEDA_ASSIGN_OR_RETURN(const cuda::DevicePtr gpu, machine->device(device));
  const auto kernels = machine->kernels(gpu);
  if (kernels == nullptr) {
    return {Code::kUnimplemented, std::string(what) + ": there are no kernels of rueda's for GPU " +
                                      std::to_string(device)};
  }
  const cuda::ContextScope scope(*gpu);
  RUEDA_RETURN_IF_ERROR(scope.status());
  return kernels->check(launch(*kernels), what);
}

}  // namespace

Status int8_quantize(nccl::Machine* machine, const float* from, int8_t* to, int64_t blocks,
                     int device, cuda::StreamHandle stream) {
  return with_kernels(machine, device, "int8 quantisation",
                      [&](const cuda::kernels::Library& kernels) {
                        return kernels->quantize(from, to, blocks, stream);
                      });
}

Status int8_dequantize(nccl::Machine* machine, const int8_t* from, float* to, int64_t blocks,
                       int device, cuda::StreamHandle stream) {
  return with_kernels(machine, device, "int8 dequantisation",
                      [&](const cuda::kernels::Library& kernels) {
                        return kernels->dequantize(from, to, blocks, stream);
                      });
}

}  // namespace rueda::nccl

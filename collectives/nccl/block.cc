#include "collectives/nccl/block.h"

#include <string>

namespace rueda::nccl {

Result<Block> allocate_of_nccl(const cuda::DevicePtr& device,
                               const std::shared_ptr<const Library>& library, size_t bytes) {
  const Functions& nccl = library->functions();
  if (nccl.mem_alloc == nullptr || nccl.mem_free == nullptr) {
    return Status(Code::kUnimplemented,
                  library->describe() +
                      " gives no memory (ncclMemAlloc): install 2.19 or newer "
                      "(pip install nvidia-nccl-cu13, or -cu12 for CUDA 12)");
  }
  const cuda::ContextScope scope(*device);
  RUEDA_RETURN_IF_ERROR(scope.status());
  const cuda::BesideCaptures beside(device->driver());
  void* memory = nullptr;
  const Status made = library->check(nccl.mem_alloc(&memory, bytes), "ncclMemAlloc");
  if (!made.ok() || memory == nullptr) {
    return Status(Code::kResourceExhausted, std::to_string(bytes) + " bytes on GPU " +
                                                std::to_string(device->ordinal()) + " (" +
                                                device->name() + "): " + made.message());
  }
  const auto free = [device, library](std::byte* gone) {
    const cuda::ContextScope of(*device);
    const cuda::BesideCaptures again(device->driver());
    (void)(*library)->mem_free(gone);
  };
  return Block{{static_cast<std::byte*>(memory), free}, bytes, device, nccl.mem_alloc};
}

Result<Block> allocate_block(const cuda::DevicePtr& device,
                             const std::shared_ptr<const Library>& library, size_t bytes) {
  auto made = allocate_of_nccl(device, library, bytes);
  if (made.ok()) return made;
  RUEDA_ASSIGN_OR_RETURN(const auto plain, cuda::Memory::allocate(device, bytes));
  return Block{{plain, plain->data()}, bytes, device, nullptr};
}

}  // namespace rueda::nccl

// The doors of the pool of GPU memory that NCCL can register.
#include "bindings/c/context.h"
#include "collectives/nccl/pool.h"

using rueda::Status;
using rueda::nccl::BlockPool;

extern "C" {

int32_t rueda_cuda_pool_open(rueda_context* context, int32_t device, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    rueda::nccl::Machine& machine = member->runtime->machine();
    RUEDA_ASSIGN_OR_RETURN(auto gpu, machine.device(device));
    RUEDA_ASSIGN_OR_RETURN(auto library, machine.library());
    return BlockPool::of_process().open(std::move(gpu), std::move(library));
  });
}

void* rueda_cuda_pool_allocate(int64_t bytes, int32_t device, void* /*stream*/) {
  void* memory = nullptr;
  (void)rueda::c_abi::guarded(nullptr, [&]() -> Status {
    if (bytes >= 0) memory = BlockPool::of_process().allocate(static_cast<size_t>(bytes), device);
    return {};
  });
  return memory;
}

void rueda_cuda_pool_free(void* memory, int64_t /*bytes*/, int32_t /*device*/, void* /*stream*/) {
  (void)rueda::c_abi::guarded(nullptr, [&]() -> Status {
    if (memory != nullptr) BlockPool::of_process().free(memory);
    return {};
  });
}

}  // extern "C"

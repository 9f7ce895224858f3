// Block: memory of a GPU that NCCL can be told of, so that it uses it where it lies. From NCCL's
// own calls (2.19) where it has them: only that can become a symmetric window (2.27).
//
// Ownership: freed with the last that holds `data`. Failure: ResourceExhausted, Unimplemented.
#pragma once

#include <cstddef>
#include <memory>

#include "collectives/cuda/device.h"
#include "collectives/nccl/library.h"

namespace rueda::nccl {

struct Block {
  std::shared_ptr<std::byte> data;
  size_t bytes = 0;
  cuda::DevicePtr device;
  // NCCL's function that made it, so that a communicator of another copy of NCCL leaves it alone;
  // null: the driver did.
  ResultCode (*maker)(void**, size_t) = nullptr;

  bool contains(const std::byte* address) const {
    return address >= data.get() && address < data.get() + bytes;
  }
};

// Unimplemented: this NCCL gives no memory.
Result<Block> allocate_of_nccl(const cuda::DevicePtr& device,
                               const std::shared_ptr<const Library>& library, size_t bytes);
// NCCL's memory, else the driver's.
Result<Block> allocate_block(const cuda::DevicePtr& device,
                             const std::shared_ptr<const Library>& library, size_t bytes);

}  // namespace rueda::nccl

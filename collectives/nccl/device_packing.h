// Packing: the tensors of a reduction on a GPU are copied into one buffer, so that NCCL is called
// once instead of once for each tensor.
//
// It pays for many small tensors: two copies at the speed of memory against NCCL's work for each
// call. All ranks must decide alike, so the decision looks at sizes alone. Pure.
#pragma once

#include <optional>
#include <vector>

#include "collectives/cuda/kernels/functions.h"
#include "collectives/desc/parts.h"

namespace rueda::nccl {

inline constexpr size_t kPackBytes = size_t{32} << 20;  // of the buffer

struct Packing {
  std::vector<cuda::kernels::Table> in;   // tensors -> buffer
  std::vector<cuda::kernels::Table> out;  // buffer -> tensors
  cuda::kernels::Format format = cuda::kernels::Format::kBytes;
  int64_t count = 0;  // elements of the buffer that are reduced, gaps included
};

// Empty: each tensor is reduced where it lies.
std::optional<Packing> plan_packing(std::span<const Part> parts, DType dtype, std::byte* buffer);

}  // namespace rueda::nccl

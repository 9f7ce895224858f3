// DeviceAdasum: one Adasum of GPU tensors (the picture is in adasum.h), as groups of NCCL's calls
// with rueda's kernels between them, all in one stream: the weights are made on the GPU, the host
// waits for nothing.
//
//   exchange    every rank's share of each tensor to the share's owner                (send, recv)
//   per level   dot products of the pairs' shares -> summed over owners (allreduce, f64) -> sums
//   finish      scaled, rounded to the tensors' dtype, to all ranks                   (send, recv)
//
// Bits:       products are added in another order than the CPU side's, in f64: results differ by a
//             rounding in f32 at most, now and then. All ranks have the same.
// Ownership:  borrows the tensors and the scratch memory until the GPU is done.
#pragma once

#include <span>
#include <vector>

#include "collectives/cuda/kernels/library.h"
#include "collectives/desc/parts.h"
#include "collectives/nccl/session.h"

namespace rueda::nccl {

class DeviceAdasum {
 public:
  // dtype: float16, bfloat16 or float32. Result: scaled by factor.
  DeviceAdasum(std::span<const Part> parts, DType dtype, double factor, Rank rank, Rank size);
  size_t scratch_bytes() const { return scratch_bytes_; }
  void use(std::byte* scratch) { scratch_ = scratch; }
  int levels() const { return levels_; }

  // In this order, each behind the one before in the session's stream; "calls" in a group.
  Status exchange_calls(nccl::Session& session) const;
  Status gather_vectors(nccl::Session& session, const cuda::kernels::Library& kernels) const;
  Status level_calls(int level, nccl::Session& session,
                     const cuda::kernels::Library& kernels) const;
  Status add_vectors(int level, nccl::Session& session,
                     const cuda::kernels::Library& kernels) const;
  Status finish_calls(nccl::Session& session, const cuda::kernels::Library& kernels) const;

 private:
  struct Pair {
    Rank a, b;  // the first rank of each half
    int32_t a_ranks, b_ranks;
  };
  std::vector<Pair> pairs(int level) const;
  int64_t begin(size_t part, Rank owner) const;
  int64_t count(size_t part, Rank owner) const {
    return begin(part, owner + 1) - begin(part, owner);
  }
  size_t bytes(size_t part, Rank owner) const {
    return static_cast<size_t>(count(part, owner)) * size_of(dtype_);
  }
  // The owner's share of a whole tensor.
  template <typename Byte>
  std::span<Byte> share(Byte* tensor, size_t part, Rank owner) const {
    return {tensor + static_cast<size_t>(begin(part, owner)) * size_of(dtype_), bytes(part, owner)};
  }
  // Of a rank's contribution to this rank's share of a tensor.
  float* vector(Rank rank, size_t part) const;
  std::byte* arriving(Rank rank, size_t part) const;
  double* products() const { return reinterpret_cast<double*>(scratch_ + products_at_); }

  std::span<const Part> parts_;
  DType dtype_;
  double factor_;
  Rank rank_;
  Rank size_;
  int levels_ = 0;
  std::vector<int64_t> offsets_;  // of the tensors within this rank's share
  size_t arriving_at_ = 0;        // in the scratch memory; 16-bit tensors alone
  size_t products_at_ = 0;
  size_t partial_at_ = 0;
  size_t scratch_bytes_ = 0;
  std::byte* scratch_ = nullptr;
};

}  // namespace rueda::nccl

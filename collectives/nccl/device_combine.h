// DeviceCombine: one reduction of GPU tensors that NCCL has not, as groups of NCCL's calls with
// rueda's kernel between them, all in one stream:
//
//   exchange    every rank's share of each tensor to the share's owner               (send, recv)
//   combine     all ranks' inputs of the own shares, in rank order                   (the kernel)
//   gather      allreduce: the results to all ranks                                  (send, recv)
//
// A share's owner: allreduce cuts each tensor evenly, reducescatter as its rows say, and reduce
// gives all to the root.
//
// Bits:       those of the CPU side within a host (docs/numerics.md), on all ranks alike.
// Cost:       the bytes of an allreduce; scratch memory of the GPU for all ranks' own shares, about
//             one tensor.
// Ownership:  borrows the tensors and the scratch memory until the GPU is done.
#pragma once

#include <span>
#include <vector>

#include "collectives/cuda/kernels/library.h"
#include "collectives/desc/collective.h"
#include "collectives/nccl/session.h"

namespace rueda::nccl {

class DeviceCombine {
 public:
  // desc: an allreduce, a reduce or a reducescatter of no 8-bit floats, no Adasum.
  DeviceCombine(const CollectiveDesc& desc, std::span<const Part> parts, Rank rank, Rank size);
  size_t scratch_bytes() const { return size_ == 1 ? 0 : static_cast<size_t>(size_) * stride_; }
  void use(std::byte* scratch) { scratch_ = scratch; }

  // In this order, each behind the one before in the session's stream; "calls" in a group.
  Status exchange_calls(Session& session) const;
  Status combine(Session& session, const cuda::kernels::Library& kernels) const;
  Status gather_calls(Session& session) const;

 private:
  int64_t begin(size_t part, Rank owner) const;
  size_t bytes(size_t part, Rank owner) const {
    return static_cast<size_t>(begin(part, owner + 1) - begin(part, owner)) * size_of(desc_.dtype);
  }
  // The owner's share of a whole tensor.
  template <typename Byte>
  std::span<Byte> share(Byte* tensor, size_t part, Rank owner) const {
    return {tensor + static_cast<size_t>(begin(part, owner)) * size_of(desc_.dtype),
            bytes(part, owner)};
  }

  const CollectiveDesc& desc_;
  std::span<const Part> parts_;
  Rank rank_;
  Rank size_;
  std::vector<size_t> offsets_;  // of the tensors within what comes from a rank
  size_t stride_ = 0;            // from rank to rank
  std::byte* scratch_ = nullptr;
};

}  // namespace rueda::nccl

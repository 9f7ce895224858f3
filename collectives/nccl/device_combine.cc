#include "collectives/nccl/device_combine.h"

#include <numeric>

#include "collectives/base/rounding.h"
#include "collectives/nccl/device_trade.h"

namespace rueda::nccl {
namespace {

using cuda::kernels::Combination;
using cuda::kernels::Combine;
using cuda::kernels::Element;

static_assert(static_cast<int>(Element::kInt16) == static_cast<int>(DType::kInt16));
static_assert(static_cast<int>(Element::kBFloat16) == static_cast<int>(DType::kBFloat16));
static_assert(static_cast<int>(Element::kUInt16) == static_cast<int>(DType::kUInt16));
static_assert(static_cast<int>(Element::kComplex128) == static_cast<int>(DType::kComplex128));
static_assert(static_cast<int>(Combine::kMin) == static_cast<int>(ReduceOp::kMin));
static_assert(static_cast<int>(Combine::kXor) == static_cast<int>(ReduceOp::kBitwiseXor));

}  // namespace

DeviceCombine::DeviceCombine(const CollectiveDesc& desc, std::span<const Part> parts, Rank rank,
                             Rank size)
    : desc_(desc), parts_(parts), rank_(rank), size_(size) {
  for (size_t part = 0; part < parts_.size(); ++part) {
    offsets_.push_back(stride_);
    stride_ += round_up(bytes(part, rank_), kScratchAlignment);
  }
}

int64_t DeviceCombine::begin(size_t part, Rank owner) const {
  switch (desc_.kind) {
    case CollectiveKind::kReduce: return owner > desc_.root ? parts_[part].count : 0;
    case CollectiveKind::kReducescatter:
      return std::accumulate(desc_.counts.begin(), desc_.counts.begin() + owner, int64_t{0});
    default: return shard_begin(parts_[part].count, owner, size_, shard_unit(desc_.dtype));
  }
}

Status DeviceCombine::exchange_calls(Session& session) const {
  return trade(
      session, rank_, size_, parts_.size(),
      [this](Rank peer, size_t part) { return share(parts_[part].in, part, peer); },
      [this](Rank peer, size_t part) {
        return std::span(scratch_ + static_cast<size_t>(peer) * stride_ + offsets_[part],
                         bytes(part, rank_));
      });
}

Status DeviceCombine::combine(Session& session, const cuda::kernels::Library& kernels) const {
  const cuda::ContextScope scope(*session.device());
  RUEDA_RETURN_IF_ERROR(scope.status());
  Combination combination;
  combination.stride = static_cast<int64_t>(stride_);
  combination.rank = rank_;
  combination.size = size_;
  combination.element = static_cast<Element>(desc_.dtype);
  combination.op = static_cast<Combine>(desc_.op);
  combination.prescale = desc_.scaling.prescale;
  combination.factor = desc_.scaling.finish.factor;
  combination.divisor = desc_.scaling.finish.divisor;
  combination.round_first = desc_.scaling.finish.round_first ? 1 : 0;
  const bool whole = desc_.kind != CollectiveKind::kReducescatter;  // out is a whole tensor
  for (size_t part = 0; part < parts_.size(); ++part) {
    combination.count = begin(part, rank_ + 1) - begin(part, rank_);
    if (combination.count == 0) continue;
    combination.own = share(parts_[part].in, part, rank_).data();
    combination.others = scratch_ + offsets_[part];
    combination.out = whole ? share(parts_[part].out, part, rank_).data() : parts_[part].out;
    const int error = kernels->combine(&combination, session.stream());
    RUEDA_RETURN_IF_ERROR(kernels.check(error, "reducing tensors on the GPU"));
  }
  return {};
}

Status DeviceCombine::gather_calls(Session& session) const {
  return trade(
      session, rank_, size_, parts_.size(),
      [this](Rank, size_t part) { return share(parts_[part].out, part, rank_); },
      [this](Rank peer, size_t part) { return share(parts_[part].out, part, peer); });
}

}  // namespace rueda::nccl

#include "collectives/nccl/device_adasum.h"

#include <algorithm>
#include <utility>

#include "collectives/base/rounding.h"
#include "collectives/nccl/device_trade.h"

namespace rueda::nccl {
namespace {

using cuda::kernels::Copy;
using cuda::kernels::Format;

using nccl::Session;

size_t aligned(int64_t bytes) { return round_up(static_cast<size_t>(bytes), kScratchAlignment); }

Format format_of(DType dtype) {
  return dtype == DType::kFloat32   ? Format::kFloat32
         : dtype == DType::kFloat16 ? Format::kFloat16
                                    : Format::kBFloat16;
}

Status copy(const std::vector<Copy>& copies, Format from, size_t from_bytes, Format to,
            size_t to_bytes, double factor, Session& session,
            const cuda::kernels::Library& kernels) {
  for (const cuda::kernels::Table& table : cuda::kernels::plan(copies, from_bytes, to_bytes)) {
    const int error = kernels->copy(&table, from, to, static_cast<float>(factor), session.stream());
    RUEDA_RETURN_IF_ERROR(kernels.check(error, "copying an Adasum's vectors on the GPU"));
  }
  return {};
}

}  // namespace

DeviceAdasum::DeviceAdasum(std::span<const Part> parts, DType dtype, double factor, Rank rank,
                           Rank size)
    : parts_(parts), dtype_(dtype), factor_(factor), rank_(rank), size_(size) {
  for (Rank ranks = 1; ranks < size_; ranks *= 2) ++levels_;
  int64_t total = 0;
  int64_t longest = 0;
  for (size_t part = 0; part < parts_.size(); ++part) {
    offsets_.push_back(total);
    const int64_t mine = count(part, rank_);
    longest = std::max(longest, mine);
    total += round_up(mine, shard_unit(DType::kFloat16));
  }
  offsets_.push_back(total);
  size_t at = aligned(size_ * total * 4);
  const auto take = [&at](size_t bytes) { return std::exchange(at, at + bytes); };
  arriving_at_ = dtype_ == DType::kFloat32 ? 0 : take(aligned(size_ * total * 2));
  products_at_ = take(aligned(static_cast<int64_t>(pairs(0).size() * parts_.size()) * 24));
  // As many as the kernels cut a vector into, which is never more than this.
  partial_at_ = take(aligned((longest / 1024 + 1) * 24));
  scratch_bytes_ = at;
}

int64_t DeviceAdasum::begin(size_t part, Rank owner) const {
  return shard_begin(parts_[part].count, owner, size_, shard_unit(dtype_));
}

float* DeviceAdasum::vector(Rank rank, size_t part) const {
  return reinterpret_cast<float*>(scratch_) + rank * offsets_.back() + offsets_[part];
}

std::byte* DeviceAdasum::arriving(Rank rank, size_t part) const {
  const auto element = static_cast<int64_t>(size_of(dtype_));
  return scratch_ + arriving_at_ + (rank * offsets_.back() + offsets_[part]) * element;
}

std::vector<DeviceAdasum::Pair> DeviceAdasum::pairs(int level) const {
  std::vector<Pair> found;
  const Rank ranks = 1 << level;
  for (Rank a = 0; a + ranks < size_; a += 2 * ranks)
    found.push_back({a, a + ranks, ranks, std::min(ranks, size_ - a - ranks)});
  return found;
}

Status DeviceAdasum::exchange_calls(Session& session) const {
  return trade(
      session, rank_, size_, parts_.size(),
      [this](Rank peer, size_t part) { return share(parts_[part].in, part, peer); },
      [this](Rank peer, size_t part) {
        return std::span(arriving(peer, part), bytes(part, rank_));
      });
}

Status DeviceAdasum::gather_vectors(Session& session, const cuda::kernels::Library& kernels) const {
  const cuda::ContextScope scope(*session.device());
  RUEDA_RETURN_IF_ERROR(scope.status());
  const size_t element = size_of(dtype_);
  std::vector<Copy> copies;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const int64_t mine = count(part, rank_);
    if (mine == 0) continue;
    copies.push_back({share(parts_[part].in, part, rank_).data(), vector(rank_, part), mine});
    for (Rank peer = 0; peer < size_ && dtype_ != DType::kFloat32; ++peer) {
      if (peer != rank_) copies.push_back({arriving(peer, part), vector(peer, part), mine});
    }
  }
  return copy(copies, format_of(dtype_), element, Format::kFloat32, 4, 1.0, session, kernels);
}

Status DeviceAdasum::level_calls(int level, Session& session,
                                 const cuda::kernels::Library& kernels) const {
  double* cell = products();
  for (const Pair& pair : pairs(level)) {
    for (size_t part = 0; part < parts_.size(); ++part, cell += 3) {
      const int error = kernels->products(
          vector(pair.a, part), vector(pair.b, part), count(part, rank_),
          reinterpret_cast<double*>(scratch_ + partial_at_), cell, session.stream());
      RUEDA_RETURN_IF_ERROR(kernels.check(error, "Adasum's dot products on the GPU"));
    }
  }
  const auto numbers = static_cast<size_t>(cell - products());
  return session.call("ncclAllReduce", session.library()->all_reduce, products(), products(),
                      numbers, nccl::Type::kFloat64, nccl::kSum);
}

Status DeviceAdasum::add_vectors(int level, Session& session,
                                 const cuda::kernels::Library& kernels) const {
  const cuda::ContextScope scope(*session.device());
  RUEDA_RETURN_IF_ERROR(scope.status());
  const double* cell = products();
  for (const Pair& pair : pairs(level)) {
    for (size_t part = 0; part < parts_.size(); ++part, cell += 3) {
      const int error =
          kernels->weighted_sum(vector(pair.a, part), vector(pair.b, part), count(part, rank_),
                                cell, pair.a_ranks, pair.b_ranks, session.stream());
      RUEDA_RETURN_IF_ERROR(kernels.check(error, "Adasum's sums on the GPU"));
    }
  }
  return {};
}

Status DeviceAdasum::finish_calls(Session& session, const cuda::kernels::Library& kernels) const {
  std::vector<Copy> copies;
  for (size_t part = 0; part < parts_.size(); ++part) {
    if (count(part, rank_) == 0) continue;
    copies.push_back(
        {vector(0, part), share(parts_[part].out, part, rank_).data(), count(part, rank_)});
  }
  RUEDA_RETURN_IF_ERROR(copy(copies, Format::kFloat32, 4, format_of(dtype_), size_of(dtype_),
                             factor_, session, kernels));
  return trade(
      session, rank_, size_, parts_.size(),
      [this](Rank, size_t part) { return share(parts_[part].out, part, rank_); },
      [this](Rank peer, size_t part) { return share(parts_[part].out, part, peer); });
}

}  // namespace rueda::nccl

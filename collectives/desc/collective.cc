#include "collectives/desc/collective.h"

#include <numeric>

namespace rueda {
namespace {

int64_t sum(const std::vector<int64_t>& counts, size_t begin, size_t count, size_t stride = 1) {
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) total += counts[begin + i * stride];
  return total;
}

}  // namespace

int64_t CollectiveDesc::input_count(size_t tensor, Rank rank, Rank ranks) const {
  const auto me = static_cast<size_t>(rank);
  const auto size = static_cast<size_t>(ranks);
  switch (kind) {
    case CollectiveKind::kAllgather: return counts[tensor * size + me];
    case CollectiveKind::kReducescatter: return sum(counts, 0, size);
    case CollectiveKind::kAlltoall: return sum(counts, me * size, size);
    case CollectiveKind::kBroadcast: return rank == root ? counts[tensor] : 0;
    case CollectiveKind::kReduce:
    case CollectiveKind::kAllreduce: return counts[tensor];
    default: return 0;
  }
}

int64_t CollectiveDesc::output_count(size_t tensor, Rank rank, Rank ranks) const {
  const auto me = static_cast<size_t>(rank);
  const auto size = static_cast<size_t>(ranks);
  switch (kind) {
    case CollectiveKind::kAllgather: return sum(counts, tensor * size, size);
    case CollectiveKind::kReducescatter: return counts[me];
    case CollectiveKind::kAlltoall: return sum(counts, me, size, size);
    case CollectiveKind::kReduce: return rank == root ? counts[tensor] : 0;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllreduce: return counts[tensor];
    default: return 0;
  }
}

}  // namespace rueda

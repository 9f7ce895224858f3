// Sizes: what differs from rank to rank in a collective, as agreed on. Shared by whoever runs it.
// Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/base/types.h"
#include "proto/messages.h"

namespace rueda::negotiation {

// allgather, gather: rows of each rank. alltoall: ranks x ranks, rows from sender to receiver.
// scatter: rows for each rank.
using Sizes = std::vector<int64_t>;
using SizesPtr = std::shared_ptr<const Sizes>;  // null where nothing differs

inline bool has_sizes(CollectiveKind kind) {
  return kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAlltoall ||
         kind == CollectiveKind::kGather;
}

// Can these be, for the request of this rank? Its own rows are what it asked for, and those that it
// receives are what its output has room for.
bool fit(const wire::Request& request, const SizesPtr& sizes, Rank rank, Rank ranks);

}  // namespace rueda::negotiation

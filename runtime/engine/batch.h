// What a batch of agreed operations is as a collective: its description, and where its results lie.
// Pure but for outputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/desc/collective.h"
#include "proto/messages.h"
#include "runtime/negotiation/sizes.h"

namespace rueda::engine {

// Bytes of its tensor.
int64_t bytes_of(const wire::Request& request);

using negotiation::SizesPtr;

// requests: this rank's, of one batch, whose root is a place in the group; sizes: one for each.
CollectiveDesc describe(std::span<const wire::Request* const> requests,
                        std::span<const SizesPtr> sizes, Rank ranks);

// The result of one tensor on this rank.
struct TensorResult {
  Shape shape;
  std::vector<int64_t> received_rows;  // allgather, alltoall: from each rank
};
TensorResult result_of(const wire::Request& request, const SizesPtr& sizes, Rank rank, Rank ranks);

}  // namespace rueda::engine

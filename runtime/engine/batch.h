// What a batch of agreed operations is as a collective: its description, and where its results lie.
// Pure but for outputs, which are memory of the requests.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/desc/collective.h"
#include "collectives/nccl/device_communicator.h"
#include "proto/messages.h"
#include "runtime/engine/request.h"
#include "runtime/negotiation/sizes.h"

namespace rueda::engine {

// Bytes of its tensor.
int64_t bytes_of(const wire::Request& request);
// Of all their tensors.
int64_t bytes_of(std::span<Request* const> requests);

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

// Where the tensor and its result lie in the next start: the result's memory is given, or the
// request's own. device: of GPU tensors, else null. An error: the GPU has no memory for it.
Status place_memory(Request* request, const TensorResult& result, nccl::DeviceCommunicator* device,
                    Part* part);

}  // namespace rueda::engine

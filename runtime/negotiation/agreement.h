// What the ranks must agree on for one tensor, checked when the last of them has submitted it.
// Pure.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "proto/messages.h"

namespace rueda::negotiation {

// Shared: a request seen before is one object for all ranks and steps.
using RequestPtr = std::shared_ptr<const wire::Request>;

// "allreduce 'fc1.weight'" for the wire name "allreduce.fc1.weight".
std::string title_of(const wire::Request& request);
std::string title_of(const std::string& wire_name);

// by_rank: every rank's request, none null. The first disagreement in Horovod's order of checks
// (dtype, kind, shape, scales, reduce op, dimensions, root, device, group), with each value and the
// ranks that sent it:
//   "Mismatched data types: allreduce 'x': rank 0 sent float32[17]; ranks 1, 2 sent float64[17]"
Status check_agreement(const std::vector<RequestPtr>& by_rank);

// "rank 3", "ranks 0, 2"
std::string name_ranks(const std::vector<Rank>& ranks);

}  // namespace rueda::negotiation

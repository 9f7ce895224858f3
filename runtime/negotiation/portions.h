// Portions: lists of any length as messages that keep to proto/limits.h, in the same order. Pure.
//
// A step of a hundred thousand tensors, or as many that wait for one slow rank, must not become a
// message that the receiver has to refuse.
#pragma once

#include <vector>

#include "proto/messages.h"

namespace rueda::negotiation {

// The members of one grouped call stay in one message (kMaxGroup bounds them); awaited names
// follow their requests, leaving and joining are last.
std::vector<wire::RequestList> portions(wire::RequestList list);
// One response is never cut: the root bounds what it fuses (max_fused). "left" is last.
std::vector<wire::ResponseList> portions(wire::ResponseList list);

// Most members of a grouped call.
inline constexpr size_t kMaxGroup = 4096;
// Most entries of one response in a world of this many ranks, each of which may have its number of
// rows in it.
size_t max_fused(size_t ranks);

}  // namespace rueda::negotiation

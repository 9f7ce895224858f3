// Neutral contributions: what a rank that has joined contributes to the collectives of the others:
// zeros to sums and averages (whose divisor stays the number of ranks), what changes nothing to
// other reductions, no rows to what is gathered. What it receives is thrown away.
#pragma once

#include "runtime/engine/request.h"

namespace rueda::engine {

// A claimed request with memory of its own, which nobody waits for.
RequestPtr make_neutral(const wire::Request& announcement, std::shared_ptr<ProcessSet> set);

// Fills `count` elements with what changes no result of this reduction, after scaling by prescale.
// Not for integers and products that are prescaled (negotiation/readiness_table refuses those).
void fill_neutral(DType dtype, ReduceOp op, double prescale, size_t count, std::byte* to);

}  // namespace rueda::engine

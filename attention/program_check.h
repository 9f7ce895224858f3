// Proves of programs that they cannot go wrong, whatever order their dependencies allow.
#pragma once

#include <span>

#include "attention/program.h"

namespace rueda::attention {

// One rank's: nothing reads a buffer that is not written yet or freed; no two instructions meet in
// a buffer, or two buffers in a slot, unless one comes after the other; what is allocated is freed,
// once; results are written.
Status check_program(const Program& program);

// All ranks', by rank: each by itself; each send has the one receive of its peer, of the same bytes
// of the same exchange; and no order can deadlock, even if a send completes only when its receive
// has begun and each rank runs its list in order, waiting where it must.
Status check_programs(std::span<const Program> world);

// Of a spec: makes all ranks' programs, forward and backward, and checks them.
Status check_spec(const AttentionSpec& spec);
// Of one rank's plan: the programs that it runs (see program_of), with those that the other ranks
// make of its spec.
Status check_plan(const AttentionPlan& plan, bool keeps_out);

}  // namespace rueda::attention

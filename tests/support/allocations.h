// Counts what a test's program allocates: with malloc and its kin, under a sanitizer with new.
#pragma once

#include <cstdint>
#include <string>

namespace rueda::testing {

int64_t allocations_of_this_thread();
// Of all threads so far.
int64_t allocations_of_all_threads();

// Between the two calls the stacks of the first few allocations of any thread are kept. The second
// returns them, a frame a line, as addresses in their files that `addr2line -Cfpie FILE` reads.
void trace_allocations();
std::string traced_allocations();

}  // namespace rueda::testing

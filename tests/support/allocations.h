// Counts what a test's program allocates: with malloc and its kin, under a sanitizer with new.
#pragma once

#include <cstdint>

namespace rueda::testing {

int64_t allocations_of_this_thread();
// Of all threads so far.
int64_t allocations_of_all_threads();

}  // namespace rueda::testing

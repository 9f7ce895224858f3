// Counts what a test's thread allocates.
#pragma once

#include <cstdint>

namespace rueda::testing {

int64_t allocations_of_this_thread();

}  // namespace rueda::testing

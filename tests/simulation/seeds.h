// Which seeds a test tries.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace rueda::testing {

inline uint64_t number_in(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// From which seed on, and how many: all from 0, one that is named, or so many from there.
struct Seeds {
  explicit Seeds(uint64_t all)
      : first(number_in("RUEDA_SIMULATION_SEED", 0)),
        count(number_in("RUEDA_SIMULATION_SEEDS",
                        std::getenv("RUEDA_SIMULATION_SEED") != nullptr ? 1
                        : std::getenv("RUEDA_TEST_SHORT") != nullptr    ? all / 10
                                                                        : all)) {}
  uint64_t first, count;
};

}  // namespace rueda::testing

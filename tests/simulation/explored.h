// What a search through all states of a model has come upon.
#pragma once

#include <cstddef>
#include <string>

namespace rueda::testing {

struct Explored {
  size_t states = 0;
  size_t ends = 0;
  std::string broken;  // "" or what must never be
};

}  // namespace rueda::testing

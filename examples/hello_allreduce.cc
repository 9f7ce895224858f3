// The smallest rueda program in C++: every rank gives its number, every rank gets the sum.
//
//   ruedarun -np 4 hello_allreduce        (from the build folder's examples/)
#include <cstdio>
#include <exception>
#include <vector>

#include "rueda/rueda.hpp"

int main() try {
  rueda::Context hvd = rueda::init();
  std::vector<float> value{static_cast<float>(hvd.rank())};
  hvd.allreduce(value, rueda::ReduceOp::kSum, {.name = "hello"});
  std::printf("rank %d of %d: the ranks add up to %g\n", hvd.rank(), hvd.size(), value[0]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

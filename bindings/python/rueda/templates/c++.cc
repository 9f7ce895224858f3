// Collectives from C++:
//
//   export PKG_CONFIG_PATH=$(python -m rueda --pkg-config-dir)
//   g++ -std=c++20 NAME -o job $(pkg-config --cflags --libs rueda) \
//       -Wl,-rpath,$(pkg-config --variable=libdir rueda)
//   ruedarun -np 2 ./job
#include <cstdio>
#include <rueda/rueda.hpp>
#include <vector>

int main() {
  rueda::Context hvd = rueda::init();  // joins the job; alone it is a job of one rank

  // In place: afterwards the average over ranks, the same bits on each. Ranks meet by the name.
  std::vector<float> gradient(1000, 1.0f + static_cast<float>(hvd.rank()));
  hvd.allreduce(gradient, rueda::ReduceOp::kAverage, {.name = "gradient"});

  if (hvd.rank() == 0) std::printf("%d ranks: %g\n", hvd.size(), gradient[0]);
}

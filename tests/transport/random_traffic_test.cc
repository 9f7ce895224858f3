// Random traffic over pipes that let through what the seed says, byte by byte.
#include <catch2/catch.hpp>

#include <cstdlib>

#include "tests/transport/random_traffic.h"
#include "tests/transport/two_sides.h"

namespace rueda::transport {
namespace {

// As much as the pipe lets through until the next time it is asked.
void turn_taps(Pipe& pipe, std::mt19937& random) {
  const auto much = [&]() -> size_t {
    switch (random() % 4) {
      case 0: return 0;
      case 1: return random() % 100;
      case 2: return random() % 100'000;
      default: return Pipe::kUnlimited;
    }
  };
  pipe.room = much();
  pipe.readable_now = much();
}

TEST_CASE("random traffic with cancels and expiries keeps its order and leaves nothing",
          "[random_traffic]") {
  const bool is_short = std::getenv("RUEDA_TEST_SHORT") != nullptr;
  const unsigned seeds = is_short ? 6 : 24;
  const int steps = is_short ? 1000 : 3000;
  size_t arrived = 0;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    TwoSides world(seed % 2 == 0);
    std::mt19937 random(seed + 1000);
    RandomTraffic traffic({world.sides[0].get(), world.sides[1].get()}, seed);
    for (int step = 0; step < steps; ++step) {
      traffic.step();
      if (random() % 3 == 0) turn_taps(random() % 2 == 0 ? *world.there : *world.back, random);
      if (random() % 2 == 0) world.sides[random() % 2]->progress();
      for (auto* pipe : {world.there.get(), world.back.get()}) pipe->forget_taken();
    }
    const std::string wrong = traffic.finish([&] {
      for (auto* pipe : {world.there.get(), world.back.get()})
        pipe->room = pipe->readable_now = Pipe::kUnlimited;
      world.run();
    });
    REQUIRE(wrong == "");
    REQUIRE(world.ends.empty());
    REQUIRE(world.ends_at_0.empty());
    arrived += traffic.arrived();
  }
  CHECK(arrived > seeds * static_cast<unsigned>(steps) / 20);  // it was traffic
}

}  // namespace
}  // namespace rueda::transport

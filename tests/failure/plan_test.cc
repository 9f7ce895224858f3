// Real processes that follow a step plan: a rank dies while its peers are blocked in it; and ranks
// with nothing to do sleep.
#include <catch2/catch.hpp>
#include <random>

#include "tests/failure/failed_job.h"

using rueda::testing::check_death;
using rueda::testing::Death;
using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::setup_of;

TEST_CASE("a rank that dies between the starts of a planned step ends it for the others",
          "[failure]") {
  check_death({"planned", "kill", 2, 1});
  check_death({"planned", "kill", 3, 0});
  check_death({"planned", "abort", 3, 2});
  check_death({"planned", "exit3", 2, 0});
  check_death({"planned", "leave", 3, 1});
}

TEST_CASE("a rank that dies at any moment of planned steps ends them for the others", "[failure]") {
  std::mt19937 random(Catch::rngSeed());
  for (Death death : {Death{"planned", "kill", 2, 0}, Death{"planned", "kill", 3, 2},
                      Death{"planned", "leave", 2, 1}}) {
    death.more = {"delay_us=" + std::to_string(random() % 20'000)};
    check_death(death);
  }
}

TEST_CASE("ranks with nothing to do do not wake", "[failure]") {
  for (const int size : {1, 3}) {
    Job job(job_of(size, "", {"asleep"}), setup_of(""));
    CHECK(job.wait() == 0);
    INFO(job.out() << job.err());
    for (int rank = 0; rank < size; ++rank)
      CHECK_THAT(job.out(), Catch::Contains("rank " + std::to_string(rank) + " woke 0 times"));
  }
}

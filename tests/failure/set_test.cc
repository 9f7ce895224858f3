// Real processes in process sets: the death of a rank ends the works of all sets, also of those
// that it is no member of.
#include <catch2/catch.hpp>

#include "tests/failure/failed_job.h"

using rueda::testing::check_death;
using rueda::testing::Death;

TEST_CASE("a rank that dies in one process set is named in all others", "[failure]") {
  check_death({"sets", "kill", 4, 1, "", {"delay_us=20000"}});
  check_death({"sets", "exit3", 4, 0, "", {"delay_us=3000"}});
  check_death({"sets", "abort", 4, 3, "tcp", {"delay_us=20000"}});
  check_death({"sets", "leave", 4, 2, "hybrid", {"delay_us=20000"}});
}

TEST_CASE("a rank that has joined and dies is named by those that go on", "[failure]") {
  check_death({"joined", "kill", 3, 1, "", {"delay_us=20000"}});
  check_death({"joined", "abort", 2, 0, "", {"delay_us=3000"}});
  check_death({"joined", "kill", 3, 2, "tcp", {"delay_us=20000"}});
}

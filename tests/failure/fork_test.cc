// Ranks that fork, as data loaders do.
#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/failure/failed_job.h"

using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::line_with;
using rueda::testing::number_after;
using rueda::testing::setup_of;
using rueda::testing::World;

TEST_CASE("a forked child can do nothing to its parent's job and holds nothing of it",
          "[failure][fork]") {
  for (const char* transport : {"", "tcp", "hybrid"}) {
    Job job(job_of(3, transport, {"fork", "mib=4"}), setup_of(transport));
    CHECK(job.wait() == 0);
    INFO(job.out() << job.err());
    const std::string child = line_with(job.out(), "child: run gives ");
    CHECK_THAT(child,
               Catch::Contains(
                   "run gives failed precondition, submit failed precondition, rank -1, size -1, "
                   "counter -1: this process was forked"));
    CHECK(line_with(job.out(), "child holds ").empty());
    CHECK_THAT(job.out(), Catch::Contains("child ended with 0"));
    for (const char* rank : {"0", "1", "2"})
      CHECK_THAT(job.out(), Catch::Contains(std::string("rank ") + rank + " finished"));
    CHECK(job.wait_until_gone());
  }
}

TEST_CASE("a rank's death is known at once although its forked child lives on", "[failure][fork]") {
  for (const char* transport : {"", "tcp", "hybrid"}) {
    const World before;
    Job job(job_of(3, transport, {"fork_death", "victim=1", "how=kill"}), setup_of(transport));
    CHECK(job.wait() == 137);
    INFO(job.out() << job.err());
    const double died = number_after(job.out(), "rank 1 dies at ");
    for (const char* rank : {"rank 0", "rank 2"}) {
      const std::string told = line_with(job.out(), std::string(rank) + " told at ");
      CHECK_THAT(told, Catch::Contains(": unavailable: ") && Catch::Contains("rank 1 "));
      std::printf("  a parent's death, %s: news after %.1f ms\n", rank,
                  (number_after(told, "told at ") - died) * 1e3);
    }
    CHECK(job.wait_until_gone());
    before.check_unchanged();
  }
}

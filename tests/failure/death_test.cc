// A rank dies at every moment of its life: the others are told who, soon, and nothing is left.
#include <catch2/catch.hpp>
#include <cstdio>
#include <random>

#include "tests/failure/failed_job.h"

using rueda::testing::check_death;
using rueda::testing::Death;
using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::line_with;
using rueda::testing::setup_of;

namespace {

// The seed is printed with a failure (Catch2's --rng-seed repeats it).
std::vector<std::string> random_moment(std::mt19937* random, int mib) {
  const auto pick = [random](int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(*random);
  };
  return {"mib=" + std::to_string(mib), "at=" + std::to_string(pick(1, 5)),
          "delay_us=" + std::to_string(pick(0, 30'000))};
}

void stream_deaths(const std::string& transport, int mib, const std::vector<Death>& deaths) {
  std::mt19937 random(Catch::rngSeed());
  for (Death death : deaths) {
    death.scene = "streaming";
    death.transport = transport;
    death.more = random_moment(&random, mib);
    check_death(death);
  }
}

}  // namespace

TEST_CASE("a rank that dies before init is known to those in init", "[failure]") {
  check_death({"before_init", "kill", 2, 0});
  check_death({"before_init", "kill", 4, 2});
  check_death({"before_init", "abort", 3, 1});
  check_death({"before_init", "exit3", 2, 1});
  check_death({"before_init", "leave", 3, 0});
}

TEST_CASE("a rank that dies while all are idle is known at the next operation", "[failure]") {
  check_death({"idle", "kill", 2, 0});
  check_death({"idle", "kill", 4, 3});
  check_death({"idle", "abort", 3, 1});
  check_death({"idle", "exit3", 3, 0});
  check_death({"idle", "leave", 2, 1});
}

TEST_CASE("a rank that dies while the others wait for its tensor ends their wait", "[failure]") {
  check_death({"waiting", "kill", 2, 1});
  check_death({"waiting", "kill", 3, 0});
  check_death({"waiting", "abort", 4, 2});
  check_death({"waiting", "exit3", 2, 0});
  check_death({"waiting", "leave", 3, 1});
}

TEST_CASE("a rank that dies inside allreduces through shared memory ends them", "[failure]") {
  stream_deaths("", 64,
                {{"", "kill", 2, 1},
                 {"", "kill", 3, 0},
                 {"", "kill", 4, 3},
                 {"", "abort", 2, 0},
                 {"", "exit3", 3, 2},
                 {"", "leave", 2, 1},
                 {"", "leave", 4, 0}});
}

TEST_CASE("a rank that dies inside allreduces through tcp ends them", "[failure]") {
  stream_deaths("tcp", 16,
                {{"", "kill", 2, 0},
                 {"", "kill", 4, 1},
                 {"", "abort", 3, 2},
                 {"", "exit3", 2, 1},
                 {"", "leave", 3, 0}});
}

TEST_CASE("a rank that dies between hosts is known on both", "[failure]") {
  stream_deaths("hybrid", 16,
                {{"", "kill", 4, 0}, {"", "kill", 3, 1}, {"", "exit3", 4, 3}, {"", "leave", 4, 2}});
  check_death({"idle", "kill", 4, 1, "hybrid"});
  check_death({"waiting", "abort", 3, 0, "hybrid"});
}

TEST_CASE("a rank that dies instead of leaving does not keep the others", "[failure]") {
  check_death({"shutdown", "kill", 2, 0});
  check_death({"shutdown", "kill", 4, 2});
  check_death({"shutdown", "abort", 3, 0, "tcp"});
  check_death({"shutdown", "exit3", 2, 1});
  check_death({"shutdown", "leave", 3, 0});
  check_death({"shutdown", "leave", 2, 1, "hybrid"});
}

TEST_CASE("a death that follows from another does not take its place", "[failure]") {
  for (const char* transport : {"", "tcp"}) {
    std::vector<std::string> words = {"--grace-period", "1"};
    for (std::string& word : job_of(4, transport, {"domino", "victim=1", "next=2", "how=kill"}))
      words.push_back(std::move(word));
    Job job(words, setup_of(transport));
    CHECK(job.wait() == 137);  // not the 134 of rank 2
    INFO(job.out() << job.err());
    for (const char* rank : {"rank 0", "rank 3"}) {
      CHECK_THAT(line_with(job.out(), std::string(rank) + " told at "),
                 Catch::Contains("rank 1 (pid "));
      CHECK_THAT(line_with(job.out(), std::string(rank) + " asked: "),
                 Catch::Contains("lost_rank 1, "));
    }
    CHECK_THAT(job.err(), Catch::Contains("ruedarun: rank 1 (pid ") &&
                              Catch::Contains(") failed: killed by signal 9 (SIGKILL)") &&
                              Catch::Contains("rank 2 then was killed by signal 6 (SIGABRT)"));
    CHECK(job.wait_until_gone());
  }
}

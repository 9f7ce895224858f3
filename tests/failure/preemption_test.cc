// A signal to one rank stops all of them at one step.
#include <signal.h>

#include <catch2/catch.hpp>
#include <random>

#include "tests/failure/failed_job.h"

using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::line_with;
using rueda::testing::number_after;
using rueda::testing::setup_of;

TEST_CASE("a signal to any rank at any step stops all ranks at that step",
          "[failure][preemption]") {
  std::mt19937 random(Catch::rngSeed());
  const auto pick = [&random](int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(random);
  };
  for (const char* transport : {"", "", "tcp", "hybrid"}) {
    for (const int signal : {SIGTERM, SIGUSR1}) {
      const int size = pick(1, 4), victim = pick(0, size - 1), at = pick(2, 300);
      Job job(job_of(size, transport,
                     {"preempted", "victim=" + std::to_string(victim), "at=" + std::to_string(at),
                      "signal=" + std::to_string(signal)}),
              setup_of(transport));
      CHECK(job.wait() == 0);
      INFO("size " << size << "\n" << job.out() << job.err());
      for (int rank = 0; rank < size; ++rank) {
        const std::string line =
            line_with(job.out(), "rank " + std::to_string(rank) + " stops at step ");
        CHECK(number_after(line, "stops at step ") == at);
        // Also while a step plan is in force.
        if (size > 1 && at > 100 && std::string(transport).empty())
          CHECK(number_after(line, std::to_string(at) + ", ") > 0);
      }
    }
  }
}

TEST_CASE("a signal that ruedarun gets reaches the ranks and stops nothing by itself",
          "[failure][preemption]") {
  Job job(job_of(2, "", {"preempted", "say=20"}), setup_of(""));
  REQUIRE(job.wait_for_output(" is at step 20", 2));  // signals are noted by now
  kill(job.pid(), SIGUSR1);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  const double step = number_after(job.out(), "rank 0 stops at step ");
  CHECK(step >= 20);
  CHECK(number_after(job.out(), "rank 1 stops at step ") == step);
}

TEST_CASE("a setting that names no signal is an error that says what would be one",
          "[failure][preemption]") {
  Job::Setup setup = setup_of("");
  setup.environment.emplace_back("RUEDA_PREEMPTION_SIGNAL=SIGFOO");
  Job job(job_of(1, "", {"preempted"}), setup);
  CHECK(job.wait() == 1);
  CHECK_THAT(job.out(), Catch::Contains("'SIGFOO' is no signal that can be waited for"));
}

// Ranks that stop: suspected soon, dead after RUEDA_DEAD_SECONDS, and not before.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/failure/failed_job.h"

using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::line_with;
using rueda::testing::number_after;
using rueda::testing::pid_of_rank;
using rueda::testing::setup_of;

TEST_CASE("a stopped rank is suspected, then dead, and the verdict says why",
          "[failure][silence]") {
  for (const int victim : {0, 1}) {
    Job::Setup setup = setup_of("");
    setup.environment.emplace_back("RUEDA_DEAD_SECONDS=2");
    Job job(job_of(3, victim == 0 ? "" : "below a shell",
                   {"halted", "victim=" + std::to_string(victim)}),
            setup);
    CHECK(job.wait() == 137);
    INFO(job.out() << job.err());
    const std::string who = "rank " + std::to_string(victim) + " (pid ";
    CHECK_THAT(job.err(), Catch::Contains(who) && Catch::Contains(") is stopped (state T)") &&
                              Catch::Contains("counts as dead after 2.0 s"));
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const std::string told = line_with(job.out(), "rank " + std::to_string(rank) + " told at ");
      CHECK_THAT(told, Catch::Contains(who) && Catch::Contains("was stopped (state T) for 2."));
      const double after = number_after(told, "told at ") -
                           number_after(job.out(), "rank " + std::to_string(victim) + " dies at ");
      CHECK(after >= 1.7);  // the first look may come up to a quarter of a second early
    }
    CHECK_THAT(job.err(), Catch::Contains("was stopped (state T) for 2."));
    CHECK(job.wait_until_gone());
  }
}

TEST_CASE("a rank that goes on in time is nobody's loss", "[failure][silence]") {
  Job::Setup setup = setup_of("");
  setup.environment.emplace_back("RUEDA_DEAD_SECONDS=30");
  Job job(job_of(2, "", {"halted", "victim=1"}), setup);
  REQUIRE(job.wait_for_output("rank 1 (pid "));  // suspected
  const pid_t pid = pid_of_rank(job, 1);
  REQUIRE(pid > 0);
  kill(pid, SIGCONT);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK_THAT(job.out(), Catch::Contains("rank 0 finished") && Catch::Contains("rank 1 finished"));
}

TEST_CASE("a rank that a debugger holds is named and waited for", "[failure][silence]") {
  Job::Setup setup = setup_of("");
  setup.environment.emplace_back("RUEDA_DEAD_SECONDS=0.5");
  Job job(job_of(2, "", {"held", "victim=1"}), setup);
  REQUIRE(job.wait_for_output("rank 1 pid "));
  const pid_t pid = pid_of_rank(job, 1);
  REQUIRE(pid > 0);
  if (ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0) {
    WARN("no process may be traced here");
    kill(job.pid(), SIGTERM);
    CHECK(job.wait() == 143);
    return;
  }
  REQUIRE(ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr) == 0);
  int status = 0;
  REQUIRE(waitpid(pid, &status, __WALL) == pid);
  REQUIRE(job.wait_for_output("rank 1 (pid "));
  for (int i = 0; i < 300; ++i)
    usleep(5000);  // three times as long as a stopped one would be left alive
  kill(pid, SIGUSR1);
  REQUIRE(ptrace(PTRACE_DETACH, pid, nullptr, nullptr) == 0);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK_THAT(job.err(),
             Catch::Contains(") is held by a debugger (state t); the others wait for it"));
  CHECK_THAT(job.out(), Catch::Contains("rank 0 finished") && Catch::Contains("rank 1 finished"));
}

// Jobs that are stopped, continued, interrupted, or lose their launcher in the middle of
// collectives.
#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "tests/failure/failed_job.h"

using rueda::testing::eventually;
using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::pid_of_rank;
using rueda::testing::setup_of;
using rueda::testing::World;

namespace {

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t at = text.rfind(')');
  return at == std::string::npos || at + 2 >= text.size() ? 'X' : text[at + 2];
}

bool is_stopped(pid_t pid) { return state_of(pid) == 'T'; }

}  // namespace

TEST_CASE("a rank that is stopped and continued is nobody's loss", "[failure]") {
  for (const char* transport : {"", "tcp"}) {
    for (const int victim : {0, 1}) {
      Job job(job_of(2, transport, {"steps", "mib=8", "steps=200"}), setup_of(transport));
      REQUIRE(job.wait_for_output(" under way", 2));
      const pid_t pid = pid_of_rank(job, victim);
      REQUIRE(pid > 0);
      kill(pid, SIGSTOP);
      CHECK(rueda::testing::eventually(
          [pid] { return state_of(pid) == 'T' || state_of(pid) == 'Z'; }));
      // Longer than any look at sleeping peers takes; nothing is to happen meanwhile.
      for (int i = 0; i < 100; ++i) usleep(5000);
      kill(pid, SIGCONT);
      CHECK(job.wait() == 0);
      INFO(job.out() << job.err());
      CHECK_THAT(job.out(),
                 Catch::Contains("rank 0 finished") && Catch::Contains("rank 1 finished"));
      // That it is stopped, and goes on, may be said: on a busy machine half a second is longer.
      CHECK(job.err().find("lost") == std::string::npos);
      CHECK(job.err().find("failed") == std::string::npos);
    }
  }
}

TEST_CASE("Ctrl-Z stops the ranks, which are nobody's loss, and fg lets them go on", "[failure]") {
  Job::Setup setup = setup_of("");
  setup.environment.emplace_back("RUEDA_DEAD_SECONDS=0.5");
  Job job(job_of(3, "", {"obeys", "mib=1"}), setup);
  REQUIRE(job.wait_for_output(" obeys", 3));
  kill(job.pid(), SIGTSTP);
  CHECK(eventually([&] { return is_stopped(job.pid()); }));
  for (int rank = 0; rank < 3; ++rank)
    CHECK(eventually([&] { return is_stopped(pid_of_rank(job, rank)); }));
  for (int i = 0; i < 300; ++i)
    usleep(5000);  // three times as long as a silent one would be left alive
  for (int rank = 0; rank < 3; ++rank) CHECK(is_stopped(pid_of_rank(job, rank)));
  kill(job.pid(), SIGCONT);
  for (int rank = 0; rank < 3; ++rank)
    CHECK(eventually([&] { return !is_stopped(pid_of_rank(job, rank)); }));
  kill(job.pid(), SIGUSR1);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(job.err().find("is stopped") == std::string::npos);
  for (int rank = 0; rank < 3; ++rank)
    CHECK_THAT(job.out(), Catch::Contains("rank " + std::to_string(rank) + " obeyed"));
}

TEST_CASE("a job that rests is ended by SIGTERM once it goes on", "[failure]") {
  Job job(job_of(2, "", {"hold", "mib=1"}), setup_of(""));
  REQUIRE(job.wait_for_output(" holds", 2));
  kill(job.pid(), SIGTSTP);
  CHECK(eventually([&] { return is_stopped(job.pid()); }));
  kill(job.pid(), SIGTERM);
  kill(job.pid(), SIGCONT);
  CHECK(job.wait() == 143);
  CHECK(job.wait_until_gone());
}

TEST_CASE("Ctrl-C in the middle of collectives ends the job with 130", "[failure]") {
  for (const char* transport : {"", "tcp"}) {
    const World before;
    Job job(job_of(3, transport, {"steps", "mib=32", "steps=0"}), setup_of(transport));
    REQUIRE(job.wait_for_output(" under way", 3));
    kill(job.pid(), SIGINT);
    CHECK(job.wait() == 130);
    INFO(job.err());
    CHECK_THAT(job.err(), Catch::Contains("interrupted by SIGINT"));
    CHECK(job.wait_until_gone());
    before.check_unchanged();
  }
}

TEST_CASE("nothing is left of collectives whose ruedarun is killed", "[failure]") {
  for (const char* transport : {"", "hybrid"}) {
    const World before;
    Job job(job_of(3, transport, {"steps", "mib=32", "steps=0"}), setup_of(transport));
    REQUIRE(job.wait_for_output(" under way", 3));
    kill(job.pid(), SIGKILL);
    CHECK(job.wait() == 137);
    CHECK(job.wait_until_gone());
    before.check_unchanged();
  }
}

// ruedarun from outside, when something ends before its time: who is named, what is left.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/launcher/job.h"
#include "tests/support/built.h"

using rueda::testing::Job;
using Lines = std::vector<std::string>;

namespace {

std::string last_line(const Job& job) {
  const Lines lines = job.err_lines();
  return lines.empty() ? "" : lines.back();
}

// `script` runs on rank 1; the other ranks sleep until they are stopped.
Lines one_fails(const std::string& script) {
  return {"-np",
          "3",
          "--grace-period",
          "0.2",
          "sh",
          "-c",
          "if [ $RANK = 1 ]; then " + script + "; fi; sleep 1000"};
}

// A rank that says so when it is ready and ends only when it is killed, as does its own child.
constexpr const char* kStubborn =
    "trap '' INT TERM HUP; (while :; do sleep 1000; done) & echo ready; "
    "while :; do sleep 1000; done";
// A rank with a child in its group and one in a session of its own.
constexpr const char* kWithChildren = "sleep 1000 & setsid sleep 1000 & echo ready; wait";
// A rank whose daemon is in a session of its own, ignores requests, and has one of its own in
// another session.
constexpr const char* kWithDaemons =
    "echo rank $RANK is $$; setsid sh -c 'trap \"\" TERM INT HUP; setsid sleep 1000 & echo daemon; "
    "while :; do sleep 1000; done' & wait";

pid_t pid_of_rank(const Job& job, int rank) {
  const std::string said = "rank " + std::to_string(rank) + " is ";
  const size_t at = job.out().find(said);
  return at == std::string::npos ? -1 : atoi(job.out().c_str() + at + said.size());
}

}  // namespace

TEST_CASE("the code of the first rank that fails is returned, the others are stopped",
          "[ruedarun][failure]") {
  Job job(one_fails("echo what went wrong >&2; exit 3"));
  CHECK(job.wait() == 3);
  CHECK_THAT(job.err(), Catch::Contains("ruedarun: rank 1 (pid ") &&
                            Catch::Contains(") failed: exited with code 3\n") &&
                            Catch::Contains("ruedarun: its last words: what went wrong\n"));
  CHECK(last_line(job) == "ruedarun: ranks 0, 2 were stopped; exit code 3");
  CHECK(job.wait_until_gone());
}

TEST_CASE("a killed rank gives 128 and its signal", "[ruedarun][failure]") {
  Job job(one_fails("kill -9 $$"));
  CHECK(job.wait() == 137);
  CHECK_THAT(job.err(), Catch::Contains("failed: killed by signal 9 (SIGKILL)\n"));
  CHECK(last_line(job) == "ruedarun: ranks 0, 2 were stopped; exit code 137");
  CHECK(job.wait_until_gone());
}

TEST_CASE("a rank that ends well before the others is no failure", "[ruedarun][failure]") {
  Job job({"-np", "2", "sh", "-c", "[ $RANK = 0 ] || { read -r x < /proc/loadavg; echo on; }"});
  CHECK(job.wait() == 0);
  CHECK(job.err().empty());
}

TEST_CASE("ranks that fail because another was lost do not hide it", "[ruedarun][failure]") {
  Job job({"-np", "3", built::kTestRank, "lost"});
  CHECK(job.wait() == 137);
  const std::string text = job.err();
  CHECK_THAT(text, Catch::Contains("ruedarun: rank 1 (pid ") &&
                       Catch::Contains(") failed: killed by signal 9 (SIGKILL)\n") &&
                       Catch::Contains(" reported: rank 1 (pid "));
  // By the store or by the life page, whichever spoke first.
  CHECK_THAT(text, Catch::Contains(") was killed by signal 9 (SIGKILL)\n") ||
                       Catch::Contains(") was lost: killed by signal 9 (SIGKILL); it had not"));
  CHECK(last_line(job) == "ruedarun: ranks 0, 2 then exited with code 1; exit code 137");
}

TEST_CASE("ranks that ignore every request are killed after the grace period",
          "[ruedarun][failure]") {
  Job job({"-np", "3", "--grace-period", "0.2", "sh", "-c",
           "if [ $RANK = 1 ]; then exit 5; fi; " + std::string(kStubborn)});
  CHECK(job.wait() == 5);
  CHECK(last_line(job) == "ruedarun: ranks 0, 2 were stopped; exit code 5");
  CHECK(job.wait_until_gone());
}

TEST_CASE("a stopped rank is ended, too", "[ruedarun][failure]") {
  Job frozen({"-np", "2", "--grace-period", "0.2", "sh", "-c",
              "if [ $RANK = 1 ]; then exit 4; fi; kill -STOP $$"});
  CHECK(frozen.wait() == 4);
  CHECK(frozen.wait_until_gone());
  // Before it is killed it is asked, and can answer.
  Job thawed({"-np", "2", "--grace-period", "20", "sh", "-c",
              "if [ $RANK = 1 ]; then exit 4; fi; trap 'echo saved; exit 0' TERM; kill -STOP $$; "
              "sleep 1000 & wait"});
  CHECK(thawed.wait() == 4);
  CHECK_THAT(thawed.out(), Catch::Contains("[0]<stdout>: saved"));
}

TEST_CASE("Ctrl-C ends everything once all are asked", "[ruedarun][failure]") {
  Job job({"-np", "3", "--grace-period", "0.4", "sh", "-c", kWithChildren});
  REQUIRE(job.wait_for_output("ready", 3));
  kill(job.pid(), SIGINT);
  CHECK(job.wait() == 130);
  CHECK_THAT(job.err(), Catch::Contains("interrupted by SIGINT"));
  CHECK(last_line(job) == "ruedarun: ranks 0-2 were stopped; exit code 130");
  CHECK(job.wait_until_gone());
}

TEST_CASE("a second Ctrl-C kills at once what ignores the first", "[ruedarun][failure]") {
  Job job({"-np", "2", "--grace-period", "100000", "sh", "-c", kStubborn});
  REQUIRE(job.wait_for_output("ready", 2));
  kill(job.pid(), SIGINT);
  REQUIRE(job.wait_for_output("once more kills"));
  kill(job.pid(), SIGINT);
  CHECK(job.wait() == 130);
  CHECK(job.wait_until_gone());
}

TEST_CASE("SIGTERM and SIGHUP end the job with their own codes", "[ruedarun][failure]") {
  for (const int signal : {SIGTERM, SIGHUP}) {
    Job job({"-np", "2", "sh", "-c", kWithChildren});
    REQUIRE(job.wait_for_output("ready", 2));
    kill(job.pid(), signal);
    CHECK(job.wait() == 128 + signal);
    CHECK(job.wait_until_gone());
  }
}

TEST_CASE("nothing is left when ruedarun itself is killed", "[ruedarun][failure]") {
  Job job({"-np", "3", "sh", "-c", kWithChildren});
  REQUIRE(job.wait_for_output("ready", 3));
  kill(job.pid(), SIGKILL);
  CHECK(job.wait() == 137);
  CHECK(job.wait_until_gone());
}

TEST_CASE("nothing is left when the agent is killed, and ruedarun says so", "[ruedarun][failure]") {
  Job job({"-np", "3", "sh", "-c", kWithChildren});
  REQUIRE(job.wait_for_output("ready", 3));
  REQUIRE(job.agent() > 0);
  kill(job.agent(), SIGKILL);
  CHECK(job.wait() == 137);
  CHECK_THAT(last_line(job), Catch::Contains("the agent (pid ") &&
                                 Catch::Contains("was killed by signal 9 (SIGKILL)"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("ranks end with their agent though ruedarun can do nothing", "[ruedarun][failure]") {
  Job job({"-np", "2", "sh", "-c", "echo ready; exec sleep 1000"});
  REQUIRE(job.wait_for_output("ready", 2));
  REQUIRE(job.agent() > 0);
  kill(job.pid(), SIGSTOP);
  kill(job.agent(), SIGKILL);
  CHECK(rueda::testing::eventually([&] { return job.processes().size() == 1; }));
  kill(job.pid(), SIGKILL);
  CHECK(job.wait() == 137);
}

TEST_CASE("what outlives its rank is ended with the job", "[ruedarun][failure]") {
  Job job({"-np", "2", "sh", "-c", "sleep 1000 & setsid sh -c 'sleep 1000 & wait' & exit 0"});
  CHECK(job.wait() == 0);
  CHECK(job.wait_until_gone());
}

TEST_CASE(
    "sessions of their own are ended with the job after a rank, the agent or ruedarun was killed",
    "[ruedarun][failure]") {
  for (const std::string target : {"rank", "agent", "ruedarun"}) {
    INFO(target);
    Job job({"-np", "2", "--grace-period", "0.2", "sh", "-c", kWithDaemons});
    REQUIRE(job.wait_for_output("daemon", 2));
    const pid_t victim = target == "rank"    ? pid_of_rank(job, 1)
                         : target == "agent" ? job.agent()
                                             : job.pid();
    REQUIRE(victim > 0);
    REQUIRE(kill(victim, SIGKILL) == 0);
    CHECK(job.wait() == 137);
    CHECK(job.wait_until_gone());
  }
}

TEST_CASE("a job whose output nobody reads any more is stopped", "[ruedarun][failure]") {
  Job job({"-np", "2", "sh", "-c", "echo ready; while :; do echo more; done"});
  REQUIRE(job.wait_for_output("ready", 2));
  job.close_output();
  CHECK(job.wait() == 141);
  CHECK(job.wait_until_gone());
}

TEST_CASE("a program whose interpreter is missing says so and gives 127", "[ruedarun][failure]") {
  char file[] = "/tmp/ruedarun_test.XXXXXX";
  rueda::UniqueFd fd(mkostemp(file, O_CLOEXEC));
  const std::string text = "#!/no/such/interpreter\n";
  REQUIRE(write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  REQUIRE(fchmod(fd.get(), 0700) == 0);
  fd.reset();
  Job job({"-np", "2", file});
  CHECK(job.wait() == 127);
  CHECK_THAT(job.err(), Catch::Contains("interpreter named in its first line"));
  unlink(file);
}

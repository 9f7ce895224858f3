// A callback that takes its time: its rank gives signs of life all the same, and the others go on
// and are told of a loss as ever.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/failure/failed_job.h"
#include "tests/launcher/hosts_folder.h"

using rueda::testing::HostsFolder;
using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::line_with;
using rueda::testing::pid_of_rank;
using rueda::testing::setup_of;

namespace {

void summon(const Job& job, int rank) {
  const pid_t pid = pid_of_rank(job, rank);
  REQUIRE(pid > 0);
  REQUIRE(kill(pid, SIGUSR1) == 0);
}

// slow: whose callback waits until the others have been told of the victim, which is rank 2.
void check_slow_callback(int slow, const std::string& how, const std::string& transport) {
  INFO("rank " << slow << " is slow, the victim ends by " << how << ", " << transport);
  const int other = 1 - slow;
  const std::string told = "rank " + std::to_string(other) + " told at ";
  // A stopped rank is left alive for 5 s by default, and the one in its callback is there longer.
  Job job(job_of(3, transport,
                 {"slow_callback", "slow=" + std::to_string(slow), "victim=2", "how=" + how}),
          setup_of(transport));
  REQUIRE(job.wait_for_output(" is there", 3));
  REQUIRE(job.wait_for_output(" is in its callback"));
  summon(job, other);
  summon(job, 2);
  REQUIRE(job.wait_for_output(" went on", 2));
  summon(job, 2);
  REQUIRE(job.wait_for_output(told));
  INFO(job.out() << job.err());
  CHECK(job.out().find("comes out of its callback") == std::string::npos);
  summon(job, slow);
  CHECK(job.wait() == 137);
  INFO(job.out() << job.err());
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_THAT(line_with(job.out(), "rank " + std::to_string(rank) + " told at "),
               Catch::Contains(": unavailable: ") && Catch::Contains("rank 2 (pid "));
  }
  CHECK_THAT(job.out(), Catch::Contains("rank " + std::to_string(slow) + " comes out of"));
  for (int rank = 0; rank < 2; ++rank)
    CHECK_THAT(job.err(), !Catch::Contains("rank " + std::to_string(rank) + " (pid "));
  CHECK(job.wait_until_gone());
}

}  // namespace

TEST_CASE("a slow callback delays nobody's news of a loss", "[failure][callback]") {
  for (const int slow : {0, 1}) {
    check_slow_callback(slow, "kill", "");
    check_slow_callback(slow, "kill", "tcp");
  }
  check_slow_callback(0, "kill", "hybrid");
}

TEST_CASE("a rank in a slow callback gives signs of life", "[failure][callback]") {
  for (const std::string transport : {"", "tcp"}) check_slow_callback(0, "stop", transport);
}

TEST_CASE("a callback longer than every limit of silence is nobody's loss, on several hosts",
          "[failure][callback]") {
  // All on this machine, where ranks would share memory. Rank 2 is alone on its host.
  const HostsFolder hosts;
  std::vector<std::string> words = {"--rsh-agent", hosts.file("there"), "-H",
                                    "one:2,two:1", "--silence-timeout", "3"};
  for (std::string& word : job_of(3, "tcp", {"long_callback", "slow=2"}))
    words.push_back(std::move(word));
  Job::Setup setup = setup_of("tcp");
  setup.environment.emplace_back("RUEDA_DEAD_SECONDS=3");
  Job job(words, setup);
  const bool is_there = job.wait_for_output(" is in its callback");
  if (is_there) {
    usleep(7'000'000);  // a peer that alone is silent is dead after 6 s, a host after 3 s
    summon(job, 2);
  }
  const int code = job.wait();
  INFO(job.out() << job.err());
  CHECK(is_there);
  CHECK(code == 0);
  for (int rank = 0; rank < 3; ++rank)
    CHECK_THAT(job.out(), Catch::Contains("rank " + std::to_string(rank) + " finished"));
  CHECK_THAT(job.err(), !Catch::Contains("lost"));
  CHECK(job.wait_until_gone());
}

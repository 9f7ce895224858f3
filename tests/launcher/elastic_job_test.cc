// Elastic jobs on one host: real ranks that are killed, fail, come and go.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/launcher/elastic_jobs.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

// Each rank in a shell, which goes on with the second command.
Words wrapped(const Words& flags, const std::string& actions, const std::string& then) {
  Words all = flags;
  all.insert(all.end(),
             {"sh", "-c", std::string(built::kElasticRank) + " " + actions + "; " + then});
  return all;
}

// Descriptors, threads and mappings that the agent has.
size_t held_by(pid_t agent) {
  const std::string proc = "/proc/" + std::to_string(agent);
  size_t count = 0;
  for (const char* const folder : {"/fd", "/task"}) {
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(proc + folder))
      ++count;
  }
  std::ifstream maps(proc + "/maps");
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != line.npos;
  return count;
}

}  // namespace

TEST_CASE("a killed rank is replaced in its slot, and all enter the next epoch") {
  Job job(command({"-np", "3", "--min-np", "2"}, {"1/3:1=kill", "2+/3:*=end"}));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 1: rank 1 of 3, member 1"));
  CHECK(has(job.out(), "rank 0 of 3, member 0"));
  CHECK(has(job.out(), "rank 1 of 3, member 2"));
  // The newcomer is behind those that were there, and its lines say so.
  CHECK(has(job.out(), "[2]<stdout>: epoch "));
  CHECK(has(job.out(), "rank 2 of 3, member 3"));
  CHECK(has(job.err(), "was lost: killed by signal 9 (SIGKILL)"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("rank 0 may be lost as any other, and lines have the rank of their epoch") {
  Job job(command({"-np", "3", "--min-np", "1", "--on-failure", "shrink"},
                  {"1/3:0=kill", "2/2:0=fail", "3/1:0=end"}));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "[0]<stdout>: epoch 2: rank 0 of 2, member 1"));
  CHECK(has(job.out(), "[1]<stdout>: epoch 2: rank 1 of 2, member 2"));
  CHECK(has(job.out(), "[0]<stdout>: epoch 3: rank 0 of 1, member 2"));
  CHECK_FALSE(has(job.out(), "member 3"));
  CHECK(has(job.err(), "was lost: exited with code 7"));
}

TEST_CASE("rank 0 is who holds the newest commit, the lowest of them") {
  Job job(command({"-np", "4", "--min-np", "1", "--on-failure", "shrink"},
                  {"1/4:0=kill", "1/4:1=late", "2/3:*=end"}));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 2: rank 0 of 3, member 2"));
  CHECK(has(job.out(), "epoch 2: rank 1 of 3, member 1"));
  CHECK(has(job.out(), "epoch 2: rank 2 of 3, member 3"));
  CHECK(has(job.err(), "3 ranks go on from commit 1"));
}

TEST_CASE("a rank that ends with 0 and has not left is lost, and no success of the job") {
  Job job(command({"-np", "2", "--min-np", "1", "--on-failure", "shrink"},
                  {"1/2:1=quit", "2/1:0=end"}));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 2: rank 0 of 1, member 0"));
}

TEST_CASE("a rank that dies while the others end with 0 is named") {
  Job job(command({"-np", "3", "--min-np", "1"}, {"1/3:2=kill", "1/3:*=last"}));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "ruedarun: rank 2 on "));
  CHECK(
      has(job.err(), " was lost: killed by signal 9 (SIGKILL); the others have ended with code 0"));
}

TEST_CASE("an epoch that ends without a loss is nobody's loss, also not later") {
  Job job(command({"-np", "2", "--min-np", "1"}, {"1/2:1=give", "2/2:1=end", "2/2:0=last"}));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 2: rank 0 of 2, member 0"));
  CHECK(has(job.out(), "epoch 2: rank 1 of 2, member 1"));
  CHECK_FALSE(has(job.out(), "member 2"));
  CHECK(job.err().empty());
}

TEST_CASE("a lost rank is replaced though the shell around it lives, which ends with the job") {
  Job job(wrapped({"-np", "2", "--min-np", "2", "--grace-period", "60"}, "1/2:1=kill 2+/2:*=end",
                  "if [ $RUEDA_MEMBER = 1 ]; then echo goes on; sleep 1000; fi"));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "goes on"));
  CHECK(has(job.out(), "rank 1 of 2, member 2"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("what is left of a lost rank is ended while the job goes on") {
  SECTION("the shell around it, after the grace period") {
    // It is asked after as long as it then has to say so.
    Job job(wrapped({"-np", "2", "--min-np", "1", "--on-failure", "shrink", "--grace-period", "4"},
                    "1/2:1=kill", "trap 'echo asked' TERM; sleep 1000 & wait; wait"));
    REQUIRE(job.wait_for_output("epoch 2: rank 0 of 1"));
    REQUIRE(job.wait_for_output("asked"));
    CHECK(eventually([&] { return job.processes().size() == 4; }));
    kill(job.pid(), SIGKILL);
    job.wait();
    CHECK(job.wait_until_gone());
  }
  SECTION("its children at once") {
    Words all = {"-np",
                 "2",
                 "--min-np",
                 "1",
                 "--on-failure",
                 "shrink",
                 "sh",
                 "-c",
                 std::string("sleep 1000 & exec ") + built::kElasticRank + " 1/2:1=kill"};
    Job job(all);
    REQUIRE(job.wait_for_output("epoch 2: rank 0 of 1"));
    CHECK(eventually([&] { return job.processes().size() == 4; }));
    kill(job.pid(), SIGKILL);
    job.wait();
    CHECK(job.wait_until_gone());
  }
}

TEST_CASE("the launcher keeps nothing of ranks that have ended") {
  // Rank 0 of the ten fails, and all come to its number; each slot is filled again three times.
  Job job(command({"-np", "10", "--min-np", "1"}, {"*/10:0=fail"}));
  REQUIRE(job.wait_for_output("epoch 1: rank", 10));
  const pid_t agent = job.agent();
  const size_t before = held_by(agent);
  REQUIRE(job.wait_for_output(" ranks go on from commit ", 31));
  REQUIRE(job.wait_for_output("member 39"));
  CHECK(eventually([&] { return held_by(agent) <= before; }));
  kill(job.pid(), SIGTERM);
  job.wait();
  INFO(job.err());
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host that has failed leaves whole") {
  Job job(command(
      {"-np", "4", "--min-np", "2", "-H", "localhost:2,127.0.0.1:2", "--on-failure", "blacklist"},
      {"1/4:3=fail", "2+/2:*=end"}));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 1: rank 3 of 4, member 3 on 127.0.0.1"));
  CHECK(has(job.out(), "epoch 2: rank 0 of 2, member 0 on localhost"));
  CHECK(has(job.out(), "epoch 2: rank 1 of 2, member 1 on localhost"));
  CHECK(has(job.err(), "host 127.0.0.1 is not used any more"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("too few ranks for too long end the job with 124") {
  Job job(command({"-np", "2", "--min-np", "2", "--on-failure", "shrink"}, {"1/2:1=kill"}),
          quick("1"));
  CHECK(job.wait() == 124);
  INFO(job.out() << job.err());
  CHECK(has(job.err(),
            " was lost: killed by signal 9 (SIGKILL); 1 rank is left, and "
            "--min-np is 2: it keeps its state and waits"));
  CHECK(has(job.err(), "ruedarun: exit code 124"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("more resets than allowed end the job with 75") {
  Job job(command({"-np", "2", "--min-np", "1", "--reset-limit", "1", "--on-failure", "shrink"},
                  {"*/*:0=fail"}));
  CHECK(job.wait() == 7);  // nobody is left before the limit is reached
  Job again(command({"-np", "3", "--min-np", "1", "--reset-limit", "1", "--on-failure", "shrink"},
                    {"*/*:0=fail"}));
  CHECK(again.wait() == 75);
  INFO(again.out() << again.err());
  CHECK(has(again.err(), "exceeded limit: 1"));
  CHECK(again.wait_until_gone());
}

TEST_CASE("when every rank has failed the job ends as the first of them") {
  Job job(command({"-np", "2", "--min-np", "1", "--on-failure", "shrink"}, {"*/*:0=fail"}));
  CHECK(job.wait() == 7);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "rank 0 (pid "));
  CHECK(has(job.err(), "failed: exited with code 7"));
  CHECK(has(job.err(), "ruedarun: exit code 7"));
}

TEST_CASE("ranks come and go as a script finds slots for them") {
  const HostsFolder folder;
  folder.hosts_are("localhost:1\n");
  Job job(command({"-np", "1", "--min-np", "1", "--max-np", "3", "--host-discovery-script",
                   folder.file("discover")},
                  {"2+/1:*=end"}),
          quick("1"));
  INFO(job.out() << job.err());
  REQUIRE(job.wait_for_output("epoch 1: rank 0 of 1, member 0 on localhost"));
  folder.hosts_are("localhost:1\n127.0.0.1:2\n");
  REQUIRE(job.wait_for_output("rank 2 of 3"));
  folder.hosts_are("127.0.0.1:1\n");
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "removed: its place is given up"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a script that fails at once is a wrong command line, and no rank is started") {
  Job job(command({"-np", "1", "--min-np", "1", "--host-discovery-script", "echo no >&2; exit 3"},
                  {"*/*:*=end"}));
  CHECK(job.wait() == 2);
  INFO(job.out() << job.err());
  CHECK(job.out().empty());
  CHECK(has(job.err(), "exited with code 3: no"));
}

TEST_CASE("signals and the end of ruedarun end an elastic job with all its processes") {
  Job job(command({"-np", "2", "--min-np", "1"}, {}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  SECTION("SIGTERM") {
    kill(job.pid(), SIGTERM);
    CHECK(job.wait() == 128 + SIGTERM);
    CHECK_FALSE(has(job.out(), "member 2"));
  }
  SECTION("SIGINT") {
    kill(job.pid(), SIGINT);
    CHECK(job.wait() == 128 + SIGINT);
    CHECK_FALSE(has(job.out(), "member 2"));
  }
  SECTION("SIGKILL") {
    kill(job.pid(), SIGKILL);
    CHECK(job.wait() == 128 + SIGKILL);
  }
  INFO(job.out() << job.err());
  CHECK(job.wait_until_gone());
}

}  // namespace rueda::testing

// Hosts that an elastic job is asked to leave: by `rueda drain HOST`, by a signal to their agents.
#include <signal.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "tests/launcher/elastic_jobs.h"

namespace rueda::testing {
namespace {

Answer drain(Job* job, const std::string& host) { return ask(job, "drain", host); }

}  // namespace

TEST_CASE("a drained host's ranks leave, and the others go on") {
  const HostsFolder folder;
  SECTION("over several hosts, whose agent leaves with its ranks") {
    Job job(command(folder, {"-np", "3", "-H", "one:1,two:2", "--min-np", "1"}, {"2/1:0=end"}));
    REQUIRE(job.wait_for_output("of 3, member", 3));
    const Answer answer = drain(&job, "two");
    INFO(answer.err);
    CHECK(answer.code == 0);
    CHECK(answer.out == "host two is drained: its 2 ranks leave at their next commit\n");
    CHECK(job.wait() == 0);
    INFO(job.out() << job.err());
    CHECK(count(job.out(), "removed: its place is given up") == 2);
    CHECK(has(job.out(), "epoch 2: rank 0 of 1, member 0 on one"));
    CHECK_FALSE(has(job.err(), "is lost"));
    CHECK(job.wait_until_gone());
  }
  SECTION("where all names are this machine") {
    Job job(command({"-np", "2", "-H", "localhost:1,127.0.0.1:1", "--min-np", "1", "--verbose"},
                    {"2/1:0=end"}));
    REQUIRE(job.wait_for_output("of 2, member", 2));
    const Answer answer = drain(&job, "127.0.0.1");
    INFO(answer.err);
    CHECK(answer.code == 0);
    CHECK(answer.out == "host 127.0.0.1 is drained: its rank leaves at its next commit\n");
    CHECK(job.wait() == 0);
    INFO(job.out() << job.err());
    CHECK(has(job.out(), "removed: its place is given up"));
    CHECK(has(job.err(), "rueda drain: host 127.0.0.1 is drained"));
    CHECK(job.wait_until_gone());
  }
}

TEST_CASE("of two hosts that are drained at once one stays") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "1"},
                  {"1/2:*=busy", "2/1:*=end"}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  Job first = asking(&job, "drain", "one"), second = asking(&job, "drain", "two");
  const int codes = first.wait() + second.wait();
  INFO(first.out() << first.err() << second.out() << second.err());
  CHECK(codes == 1);
  CHECK(has(first.err() + second.err(), "is the only one that the job can use"));
}

TEST_CASE("a drained host is used again once it has been off the list") {
  const HostsFolder folder;
  folder.hosts_are("one:1\ntwo:1\n");
  Job job(command(folder,
                  {"-np", "2", "--min-np", "1", "--host-discovery-script", folder.file("discover")},
                  {"5+/4:*=end"}),
          quick("30"));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  CHECK(drain(&job, "two").code == 0);
  REQUIRE(job.wait_for_output("epoch 2: rank 0 of 1, member 0 on one"));
  REQUIRE(job.wait_for_output("host two is let go"));
  CHECK(has(drain(&job, "one").err, "host one is the only one that the job can use"));
  folder.hosts_are("one:1\ntwo:1\nthree:1\n");
  REQUIRE(job.wait_for_output("epoch 3: rank 1 of 2, member 2 on three"));
  CHECK(count(job.err(), "host two is here") == 1);
  folder.hosts_are("one:1\nthree:1\nfour:1\n");
  REQUIRE(job.wait_for_output("epoch 4: rank 2 of 3, member 3 on four"));
  folder.hosts_are("one:1\nthree:1\nfour:1\ntwo:1\n");
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 5: rank 3 of 4, member 4 on two"));
  CHECK(count(job.err(), "host two is here") == 2);
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host that cannot be drained is told why") {
  const HostsFolder folder;
  SECTION("it is the only one") {
    Job job(command({"-np", "1", "-H", "localhost:1", "--min-np", "1", "--verbose"}, {}));
    REQUIRE(job.wait_for_output("of 1, member"));
    const Answer last = drain(&job, "localhost");
    CHECK(last.code == 1);
    CHECK(has(last.err, "rueda: host localhost is the only one that the job can use"));
    const Answer wrong = drain(&job, "node7");
    CHECK(wrong.code == 1);
    CHECK(has(wrong.err, "rueda: the job has no host 'node7'; it has localhost"));
  }
  SECTION("its name is no host's") {
    Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "1"}, {}));
    REQUIRE(job.wait_for_output("of 2, member", 2));
    const Answer wrong = drain(&job, "three");
    CHECK(wrong.code == 1);
    CHECK(has(wrong.err, "rueda: the job has no host 'three'; it has one, two"));
  }
  SECTION("the job is not elastic") {
    Job job({"-np", "1", "--verbose", "sleep", "1000"});
    REQUIRE(job.wait_for_output("rank 0 is pid"));
    const Answer no = drain(&job, "localhost");
    CHECK(no.code == 1);
    CHECK(has(no.err, "rueda: the job is not elastic"));
  }
}

TEST_CASE("a host may be drained though the others then wait, and who asks is told") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "2"}, {}), quick("1"));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  const Answer answer = drain(&job, "two");
  CHECK(answer.code == 0);
  CHECK(has(answer.out,
            "Then 1 is left, and --min-np is 2: the job waits for other hosts, no longer than "
            "--elastic-timeout"));
  CHECK(job.wait() == 124);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "1 rank is left, and --min-np is 2: it keeps its state and waits"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("SIGTERM to a host's agent drains the host") {
  const HostsFolder folder;
  // The agent has a parent that hands signals on; some who end machines tell every process.
  const auto [agent_too, parent_too] =
      GENERATE(std::pair(true, false), std::pair(false, true), std::pair(true, true));
  folder.write("there", "#!/bin/sh\necho started $1 as $$ >&2\nshift\nexec \"$@\"\n");
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "1"}, {"2/1:0=end"}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  REQUIRE(job.wait_for_output("started two as "));
  if (parent_too) kill(number_after(job.err(), "started two as "), SIGTERM);
  if (agent_too) kill(agent_of(job, "two"), SIGTERM);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(count(job.err(), "SIGTERM: host two is drained: its rank leaves at its next commit") == 1);
  CHECK(has(job.out(), "removed: its place is given up"));
  CHECK(has(job.out(), "epoch 2: rank 0 of 1, member 0 on one"));
  CHECK_FALSE(has(job.err(), "lost"));
  CHECK_FALSE(has(job.err(), "killed"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("ranks that have not left in time, or before a second SIGTERM, are killed") {
  const HostsFolder folder;
  const bool twice = GENERATE(true, false);
  Job job(command(
      folder,
      {"-np", "2", "-H", "one:1,two:1", "--min-np", "1", "--grace-period", twice ? "600" : ".1"},
      {"1/2:1=busy", "2/1:0=end"}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  const pid_t agent = agent_of(job, "two");
  kill(agent, SIGTERM);
  REQUIRE(job.wait_for_output("SIGTERM: host two is drained"));
  if (twice) {
    CHECK(has(ask(&job, "status").out, "host two: leaving, rank 1"));
    kill(agent, SIGTERM);
  }
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "two: the ranks that have not left yet are killed"));
  CHECK(has(job.out(), "epoch 2: rank 0 of 1, member 0 on one"));
  CHECK_FALSE(has(job.err(), "is not used any more"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("SIGTERM to the agent of a job's only host stops its ranks") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "1"}, {}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  CHECK(drain(&job, "two").code == 0);
  REQUIRE(job.wait_for_output("host two is let go"));
  kill(agent_of(job, "one"), SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "host one has got SIGTERM, and the job has no other host"));
  CHECK(job.wait_until_gone());
}

}  // namespace rueda::testing

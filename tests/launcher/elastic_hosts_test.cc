// Elastic jobs over several hosts, whose agents all run on this machine.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "tests/launcher/elastic_jobs.h"

namespace rueda::testing {

TEST_CASE("a killed rank is replaced on its host, and all enter the next epoch") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "3", "-H", "one:1,two:2", "--min-np", "2"},
                  {"1/3:2=kill", "2+/3:*=end"}));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "[2]<stdout>: epoch 1: rank 2 of 3, member 2 on two"));
  CHECK(has(job.out(), "rank 0 of 3, member 0 on one"));
  CHECK(has(job.out(), "rank 1 of 3, member 1 on two"));
  CHECK(has(job.out(), "rank 2 of 3, member 3 on two"));
  CHECK(has(job.err(), "rank 2 on two was lost: killed by signal 9 (SIGKILL)"));
  CHECK_FALSE(has(job.err(), "is lost"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("rank 0 may be lost with its host, as any other") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "4", "-H", "one:2,two:2", "--min-np", "2"}, {"2/2:*=end"}));
  REQUIRE(job.wait_for_output("of 4, member", 4));
  kill(agent_of(job, "one"), SIGKILL);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "host one (agent pid "));
  CHECK(has(job.err(), "rank 0 on one was lost: the host is gone: its connection has ended"));
  CHECK(has(job.err(), "host one is not used any more: the host is gone"));
  CHECK(has(job.out(), "[0]<stdout>: epoch 2: rank 0 of 2, member 2 on two"));
  CHECK(has(job.out(), "[1]<stdout>: epoch 2: rank 1 of 2, member 3 on two"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host that has failed leaves whole, and its agent stays for the end") {
  const HostsFolder folder;
  Job job(command(folder,
                  {"-np", "4", "-H", "one:2,two:2", "--min-np", "2", "--on-failure", "blacklist"},
                  {"1/4:3=fail", "2/2:*=end"}));
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 2: rank 0 of 2, member 0 on one"));
  CHECK(has(job.out(), "epoch 2: rank 1 of 2, member 1 on one"));
  CHECK(has(job.err(), "host two is not used any more"));
  CHECK(count(job.err(), "has finished") == 2);
  CHECK(job.wait_until_gone());
}

TEST_CASE("hosts of -H that are missing may come later, where the others give --min-np ranks") {
  const HostsFolder folder;
  folder.write("there", "#!/bin/sh\nif [ $1 = two ]; then\n  until [ -e " + folder.file("go") +
                            " ]; do sleep 0.02; done\nfi\nshift\nexec \"$@\"\n");
  const auto job_with = [&](const std::string& min_np, const Words& actions) {
    return command(folder,
                   {"-np", "3", "-H", "one:2,two:1", "--min-np", min_np, "--start-timeout", "1"},
                   actions);
  };
  SECTION("they are there in time for the next epoch") {
    Job job(job_with("2", {"2+/3:*=end"}));
    REQUIRE(job.wait_for_output("epoch 1: rank 1 of 2, member 1 on one"));
    CHECK(has(job.err(),
              "the job begins without two, not there within --start-timeout: the other hosts have "
              "room for 2 ranks, and --min-np is 2"));
    folder.write("go", "");
    CHECK(job.wait() == 0);
    INFO(job.out() << job.err());
    CHECK(has(job.out(), "epoch 2: rank 2 of 3, member 2 on two"));
    CHECK(job.wait_until_gone());
  }
  SECTION("they never come") {
    Job job(job_with("1", {"1/2:*=end"}));
    CHECK(job.wait() == 0);
    INFO(job.out() << job.err());
    CHECK(count(job.out(), "of 2, member") == 2);
    folder.write("go", "");
    CHECK(job.wait_until_gone());
  }
  SECTION("and are given up") {
    const Words words = job_with("2", {"1/2:*=stay"});
    Job job(words, quick("0.5"));
    REQUIRE(
        job.wait_for_output("host two is not used: no agent has come from there "
                            "(--elastic-timeout)"));
    kill(job.pid(), SIGTERM);
    CHECK(job.wait() == 128 + SIGTERM);
    folder.write("go", "");
    CHECK(job.wait_until_gone());
  }
  SECTION("the others are too few") {
    Job job(job_with("3", {}));
    CHECK(job.wait() == 124);
    INFO(job.out() << job.err());
    CHECK(has(job.err(), "gave up after 1 s (--start-timeout) of waiting for 1 of 2 hosts: two"));
    folder.write("go", "");
    CHECK(job.wait_until_gone());
  }
}

TEST_CASE("when every host is gone the job ends with an error") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "1"}, {}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  kill(agent_of(job, "one"), SIGKILL);
  REQUIRE(job.wait_for_output("epoch 2: rank 0 of 1, member 1 on two"));
  kill(agent_of(job, "two"), SIGKILL);
  CHECK(job.wait() == 1);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "every rank has failed"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("hosts come and go as a script finds them") {
  const HostsFolder folder;
  folder.hosts_are("one:1\n");
  Job job(command(folder,
                  {"-np", "1", "--min-np", "1", "--host-discovery-script", folder.file("discover")},
                  {"2+/4:*=end"}),
          quick("30"));
  REQUIRE(job.wait_for_output("epoch 1: rank 0 of 1, member 0 on one"));
  folder.hosts_are("one:1\ntwo:2\n");
  REQUIRE(job.wait_for_output("rank 2 of 3", 1));
  folder.hosts_are("two:1\n");
  REQUIRE(job.wait_for_output("host one is let go"));
  folder.hosts_are("two:4\n");
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "of 3, member 1 on two"));
  CHECK(has(job.out(), "removed: its place is given up"));
  CHECK_FALSE(has(job.err(), "is lost"));
  CHECK_FALSE(has(job.err(), "is not used"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host that is gone is taken up again, by another agent, after its cooldown") {
  const HostsFolder folder;
  Job job(command(
      folder,
      {"-np", "2", "-H", "one:1,two:1", "--min-np", "1", "--blacklist-cooldown-range", "1", "1"},
      {"3+/2:*=end"}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  kill(agent_of(job, "two"), SIGKILL);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "host two is not used for 1 s: the host is gone"));
  CHECK(has(job.out(), "epoch 2: rank 0 of 1, member 0 on one"));
  CHECK(has(job.out(), "epoch 3: rank 1 of 2, member 2 on two"));
  CHECK(count(job.err(), "host two is here") == 2);
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host on which no agent can be started costs a line") {
  const HostsFolder folder;
  folder.write("there",
               "#!/bin/sh\nif [ $1 = bad ]; then echo no way; exit 3; fi\nshift\nexec \"$@\"\n");
  folder.hosts_are("bad:1\none:1\n");
  Job job(command(folder,
                  {"-np", "1", "--min-np", "1", "--host-discovery-script", folder.file("discover")},
                  {"2+/2:*=end"}),
          quick("30"));
  REQUIRE(job.wait_for_output("epoch 1: rank 0 of 1, member 0 on one"));
  REQUIRE(job.wait_for_output("host bad is not used: host bad cannot be started: there exited"));
  folder.hosts_are("bad:1\none:1\ntwo:1\n");
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 2: rank 1 of 2, member 1 on two"));
  CHECK(count(job.err(), "host bad is not used") == 1);
  CHECK(job.wait_until_gone());
}

TEST_CASE(
    "when no agent can be started on any host, the job waits no longer than for too few ranks") {
  const HostsFolder folder;
  folder.write("there", "#!/bin/sh\necho no way\nexit 3\n");
  folder.hosts_are("bad:1\nworse:1\n");
  Job job(command(folder,
                  {"-np", "1", "--min-np", "1", "--host-discovery-script", folder.file("discover")},
                  {}),
          quick("0.5"));
  CHECK(job.wait() == 124);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "host bad is not used"));
  CHECK(has(job.err(), "host worse is not used"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host that is lost before it has opened a port holds up no newcomer") {
  const HostsFolder folder;
  folder.hosts_are("one:1\ntwo:1\n");
  Job job(command(folder,
                  {"-np", "2", "--min-np", "1", "--host-discovery-script", folder.file("discover"),
                   "--silence-timeout", "3.5"},
                  {"2+/2:*=end"}),
          quick("30"));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  const pid_t agent = agent_of(job, "two");
  kill(agent, SIGSTOP);
  folder.hosts_are("one:1\ntwo:1\nthree:1\n");
  // Until then the other host has tried the newcomer in vain: it answers when all have ports.
  REQUIRE(job.wait_for_output("is lost: no sign of life for 3.5 s"));
  kill(agent, SIGKILL);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "rank 1 of 2, member 2 on three"));
  CHECK_FALSE(has(job.err(), "host three is not used"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("an agent that comes when its host is wanted no more is sent away") {
  const HostsFolder folder;
  // Agents of "late" and "other" come when the test says so, the first though its start was ended.
  folder.write("there", "#!/bin/sh\ncd " + folder.file("") +
                            "\nhost=$1; shift\n"
                            "until_there() { while [ ! -e $1 ]; do sleep 0.02; done; }\n"
                            "if [ $host = late ]; then\n"
                            "  cat > ticket\n"
                            "  (until_there late-go; \"$@\" < ticket; echo $? > late-ended) &\n"
                            "  wait\n"
                            "fi\n"
                            "[ $host = other ] && until_there other-go\n"
                            "exec \"$@\"\n");
  folder.hosts_are("one:1\nlate:1\nother:1\n");
  Job job(command(folder,
                  {"-np", "1", "--min-np", "1", "--host-discovery-script", folder.file("discover")},
                  {"3+/3:*=end"}),
          quick("30"));
  REQUIRE(job.wait_for_output("epoch 1: rank 0 of 1, member 0 on one"));
  folder.hosts_are("one:1\nother:1\nthree:1\n");
  REQUIRE(job.wait_for_output("epoch 2: rank 1 of 2, member 1 on three"));
  folder.write("late-go", "");
  CHECK(eventually([&] { return std::filesystem::exists(folder.file("late-ended")); }));
  folder.write("other-go", "");
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 3: rank 2 of 3, member 2 on other"));
  CHECK_FALSE(has(job.err(), "host late is here"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("signals end an elastic job on all its hosts") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "1"}, {}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  SECTION("SIGTERM") {
    kill(job.pid(), SIGTERM);
    CHECK(job.wait() == 128 + SIGTERM);
  }
  SECTION("SIGKILL") {
    kill(job.pid(), SIGKILL);
    CHECK(job.wait() == 128 + SIGKILL);
  }
  INFO(job.out() << job.err());
  CHECK_FALSE(has(job.out(), "member 2"));
  CHECK(job.wait_until_gone());
}

}  // namespace rueda::testing

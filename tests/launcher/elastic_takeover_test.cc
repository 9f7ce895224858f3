// Elastic jobs whose controller is killed: the ranks go on, and another one takes over.
#include <signal.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "tests/launcher/elastic_jobs.h"
#include "tests/support/built.h"

namespace rueda::testing {
namespace {

// Not a starter, which is a child of ruedarun too once its controller is gone. -1: there is none.
pid_t controller_of(const Job& job) {
  for (const pid_t pid : job.processes()) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    pid_t parent = -1;
    stat >> number >> name >> state >> parent;
    if (name == "(ruedarun-ctrl)" && parent == job.pid() && state != "Z") return pid;
  }
  return -1;
}

void kill_controller(const Job& job) {
  pid_t controller = -1;
  REQUIRE(eventually([&] { return (controller = controller_of(job)) > 0; }));
  kill(controller, SIGKILL);
}

// What the last controller was about to start may keep tools out for a moment.
void drained_already(Job* job, const std::string& host) {
  Answer answer;
  CHECK(eventually([&] {
    answer = ask(job, "drain", host);
    return !has(answer.err, "runs on this host");
  }));
  INFO(answer.err << job->err());
  CHECK(answer.out == "host " + host + " is drained already\n");
}

constexpr const char* kTakenOver = "another controller has taken over";

}  // namespace

TEST_CASE("a rank that is killed while there is no controller is replaced by the next") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "3", "-H", "one:1,two:2", "--min-np", "3"}, {"2+/3:*=end"}));
  REQUIRE(job.wait_for_output("of 3, member", 3));
  int lost = 0;
  SECTION("beside the controller") { lost = pid_of_member(job, 0); }
  SECTION("on another host") { lost = pid_of_member(job, 2); }
  kill_controller(job);
  kill(lost, SIGKILL);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(count(job.err(), kTakenOver) == 1);
  CHECK(has(job.err(), "was killed by signal 9 (SIGKILL); the job goes on"));
  CHECK(has(job.err(), kTakenOver + std::string(": 2 hosts")));
  CHECK(has(job.err(), "was lost: killed by signal 9 (SIGKILL); 3 ranks go on from commit 1"));
  CHECK(count(job.out(), "of 3, member") == 6);
  CHECK(count(job.out(), "member 3") == 1);
  CHECK_FALSE(has(job.err(), "is lost"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a controller may be killed again, and while the ranks heal") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "3", "-H", "one:2,two:1", "--min-np", "3"}, {"5+/3:*=end"}));
  REQUIRE(job.wait_for_output("of 3, member", 3));
  SECTION("before the loss is known") {
    for (int round = 1; round <= 3; ++round) {
      kill(pid_of_member(job, round + 1), SIGKILL);
      kill_controller(job);
      wait_for(&job, "epoch " + std::to_string(round + 1) + ": rank 2 of 3");
    }
  }
  SECTION("once it is told, or decided") {
    for (int round = 1; round <= 3; ++round) {
      const pid_t lost = pid_of_member(job, round + 1);
      kill(lost, SIGKILL);
      wait_for(&job, "(pid " + std::to_string(lost) + " on two) was lost");
      kill_controller(job);
      wait_for(&job, "epoch " + std::to_string(round + 1) + ": rank 2 of 3");
    }
  }
  // The job does not end before the third has taken over.
  wait_for(&job, kTakenOver, 3);
  kill(pid_of_member(job, 5), SIGKILL);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(count(job.err(), kTakenOver) == 3);
  for (int epoch = 1; epoch <= 5; ++epoch)
    CHECK(count(job.out(), "epoch " + std::to_string(epoch) + ": rank 2 of 3") == 1);
  CHECK(job.wait_until_gone());
}

TEST_CASE("two controllers killed one after the other, before the second has taken over") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "2"}, {"2+/2:*=end"}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  kill_controller(job);
  REQUIRE(job.wait_for_output("another controller takes over", 1));
  kill_controller(job);
  REQUIRE(job.wait_for_output("another controller takes over", 2));
  kill(pid_of_member(job, 1), SIGKILL);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 2: rank 1 of 2, member 2 on two"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host that is lost while there is no controller is lost to the next") {
  const HostsFolder folder;
  Job job(command(
      folder, {"-np", "3", "-H", "one:1,two:1,three:1", "--min-np", "1", "--silence-timeout", "1"},
      {"2/2:*=end"}));
  REQUIRE(job.wait_for_output("of 3, member", 3));
  kill(job.pid(), SIGSTOP);  // so that nobody takes over before
  kill_controller(job);
  kill(agent_of(job, "two"), SIGKILL);
  kill(job.pid(), SIGCONT);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), kTakenOver + std::string(": 2 hosts, 2 ranks")));
  CHECK(has(job.err(), "host two is lost: it has not come back to the new controller"));
  CHECK(has(job.out(), "epoch 2: rank 0 of 2, member 0 on one"));
  CHECK(has(job.out(), "epoch 2: rank 1 of 2, member 2 on three"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("half of the hosts are too few to go on from what they keep of the last decision") {
  const HostsFolder folder;
  Job job(command(folder,
                  {"-np", "2", "-H", "one:1,two:1", "--min-np", "1", "--silence-timeout", "1",
                   "--driver-timeout", "3"},
                  {}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  kill(job.pid(), SIGSTOP);  // so that nobody takes over before
  kill_controller(job);
  kill(agent_of(job, "two"), SIGKILL);
  kill(job.pid(), SIGCONT);
  CHECK(job.wait() == 70);
  INFO(job.out() << job.err());
  CHECK(has(job.err(),
            "too few hosts have come back to the new controller within 3 s "
            "(--driver-timeout): 1 of 2"));
  CHECK_FALSE(has(job.err(), kTakenOver));
  CHECK_FALSE(has(job.out(), "epoch 2"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host that is found after a take-over gets in, though the script fails at first") {
  const HostsFolder folder;
  folder.hosts_are("one:1\ntwo:1\n");
  Job job(command(folder,
                  {"-np", "2", "--min-np", "1", "--host-discovery-script", folder.file("discover")},
                  {"2+/3:*=end"}),
          quick("30"));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  folder.hosts_are("nonsense: one\n");
  wait_for(&job, "the hosts that it found before stay");
  kill_controller(job);
  wait_for(&job, kTakenOver);
  wait_for(&job, "the hosts that it found before stay", 2);
  folder.hosts_are("one:1\ntwo:1\nthree:1\n");
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 2: rank 2 of 3, member 2 on three"));
  CHECK_FALSE(has(job.err(), "is lost"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("the next controller knows which hosts are drained") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "1"},
                  {"1/2:*=busy", "2/1:*=end"}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  CHECK(ask(&job, "drain", "two").code == 0);
  kill_controller(job);
  wait_for(&job, kTakenOver);
  drained_already(&job, "two");
  kill(pid_of_member(job, 1), SIGKILL);  // it comes to no commit
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 2: rank 0 of 1, member 0 on one"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host that has come since the last decision stays, and keeps its address") {
  const HostsFolder folder;
  folder.hosts_are("one:1\n");
  Job job(command(folder,
                  {"-np", "1", "--min-np", "1", "--max-np", "1", "--host-discovery-script",
                   folder.file("discover")},
                  {}),
          quick("30"));
  REQUIRE(job.wait_for_output("epoch 1: rank 0 of 1, member 0 on one"));
  folder.hosts_are("one:1\ntwo:1\n");
  // Its agent has its assignment, and no record: nobody was started for it.
  wait_for(&job, "two: agent is pid");
  kill_controller(job);
  wait_for(&job, kTakenOver + std::string(": 2 hosts, 1 rank"));
  folder.hosts_are("one:1\ntwo:1\nthree:1\n");
  wait_for(&job, "ranks on three use address");  // all can reach all
  kill(job.pid(), SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
  INFO(job.out() << job.err());
  CHECK(count(job.err(), "host two is here") == 1);
  CHECK_FALSE(has(job.err(), "is let go"));
  CHECK_FALSE(has(job.err(), "is not used"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a host that the job began without is awaited by the next controller as well") {
  const HostsFolder folder;
  folder.write("there", "#!/bin/sh\nif [ $1 = two ]; then\n  until [ -e " + folder.file("go") +
                            " ]; do sleep 0.02; done\nfi\nshift\nexec \"$@\"\n");
  Job job(command(folder,
                  {"-np", "2", "-H", "one:1,two:1", "--min-np", "1", "--start-timeout", "1"},
                  {"2+/2:*=end"}));
  REQUIRE(job.wait_for_output("epoch 1: rank 0 of 1, member 0 on one"));
  kill_controller(job);
  wait_for(&job, kTakenOver);
  folder.write("go", "");
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(has(job.out(), "epoch 2: rank 1 of 2, member 1 on two"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("the next controller does not invite a host that was drained before") {
  const HostsFolder folder;
  const bool was_there = GENERATE(true, false);
  // Nobody comes from the host that is awaited.
  folder.write("there", "#!/bin/sh\necho $1 >> " + folder.file("started") +
                            (was_there ? "\n" : "\n[ $1 = two ] && exec sleep 1000\n") +
                            "shift\nexec \"$@\"\n");
  folder.hosts_are("one:1\ntwo:1\n");
  Job job(command(folder,
                  {"-np", "1", "--min-np", "1", "--host-discovery-script", folder.file("discover")},
                  {}),
          quick("30"));
  if (was_there) {
    wait_for(&job, "member 1 on two");
    CHECK(ask(&job, "drain", "two").code == 0);
    wait_for(&job, "host two is let go");
  } else {
    wait_for(&job, "member 0 on one");
    CHECK(ask(&job, "drain", "two").out == "host two is drained, no rank is there\n");
  }
  folder.hosts_are("one:1\ntwo:1\nthree:1\n");
  wait_for(&job, was_there ? "member 2 on three" : "member 1 on three");
  kill_controller(job);
  wait_for(&job, kTakenOver);
  drained_already(&job, "two");
  folder.hosts_are("two:1\none:1\nthree:1\nfour:1\n");
  wait_for(&job, "on four");
  std::ifstream started(folder.file("started"));
  const std::string all((std::istreambuf_iterator<char>(started)), {});
  CHECK(count(all, "two\n") == 1);
  CHECK(has(all, "four\n"));
  kill(job.pid(), SIGTERM);
  job.wait();
  CHECK(job.wait_until_gone());
}

TEST_CASE("a signal that comes while there is no controller ends the job") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "1"}, {}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  kill(job.pid(), SIGSTOP);
  kill_controller(job);
  kill(job.pid(), SIGTERM);
  kill(job.pid(), SIGCONT);
  CHECK(job.wait() == 128 + SIGTERM);
  INFO(job.out() << job.err());
  CHECK_FALSE(has(job.out(), "epoch 2"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a controller that is killed once the job is over leaves the job's exit code") {
  const HostsFolder folder;
  const std::string more_than_a_pipe = "head -c 100000 /dev/zero | tr '\\0' x";
  Job job({"--rsh-agent", folder.file("there"), "--verbose", "-np", "2", "-H", "one:1,two:1",
           "--min-np", "1", "--driver-timeout", "1", "sh", "-c",
           "until [ -e " + folder.file("go") + " ]; do sleep 0.01; done; " + more_than_a_pipe});
  REQUIRE(job.wait_for_output(" is pid ", 2));
  folder.write("go", "");
  // The controller has more to print, and is alone with ruedarun.
  REQUIRE(eventually([&] { return job.processes().size() == 2; }));
  const pid_t controller = controller_of(job);
  REQUIRE(controller > 0);
  kill(controller, SIGKILL);
  CHECK(job.wait() == 0);
  INFO(job.err());
  CHECK(has(job.err(), "(SIGKILL) when the job was over; exit code 0"));
  CHECK_FALSE(has(job.err(), "takes over"));
}

TEST_CASE("without a controller for --driver-timeout the ranks are ended") {
  const HostsFolder folder;
  Job job(command(folder,
                  {"-np", "2", "-H", "one:1,two:1", "--min-np", "1", "--driver-timeout", "1",
                   "--silence-timeout", "1"},
                  {}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  const pid_t first = pid_of_member(job, 0), second = pid_of_member(job, 1);
  SECTION("and a controller that comes later finds nobody") {
    kill(job.pid(), SIGSTOP);
    kill_controller(job);
    CHECK(eventually([&] { return kill(first, 0) != 0 && kill(second, 0) != 0; }));
    kill(job.pid(), SIGCONT);
    CHECK(job.wait() == 70);
    INFO(job.out() << job.err());
    CHECK(has(job.err(),
              "too few hosts have come back to the new controller within 1 s "
              "(--driver-timeout): 0 of 2"));
  }
  SECTION("also when nobody is left who would start one") {
    const pid_t controller = controller_of(job);
    kill(controller, SIGSTOP);
    kill(job.pid(), SIGKILL);
    kill(controller, SIGKILL);
    CHECK(job.wait() == 128 + SIGKILL);
  }
  CHECK(job.wait_until_gone());
}

TEST_CASE("with --driver-timeout 0 a job ends with its controller") {
  const HostsFolder folder;
  Job job(command(folder,
                  {"-np", "2", "-H", "one:1,two:1", "--min-np", "1", "--driver-timeout", "0"}, {}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  kill_controller(job);
  CHECK(job.wait() == 128 + SIGKILL);
  INFO(job.out() << job.err());
  CHECK(has(job.err(), "every process of the job was killed"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("the new controller answers `rueda status`") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "2"}, {"2+/2:*=end"}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  kill_controller(job);
  REQUIRE(job.wait_for_output(kTakenOver));
  const std::string before = "ruedarun: job ";
  Job::Setup setup;
  setup.program = built::kRuedaTool;
  Job tool({"status", job.err().substr(job.err().find(before) + before.size(), 16)}, setup);
  CHECK(tool.wait() == 0);
  INFO(tool.out() << tool.err());
  CHECK(has(tool.out(), "one"));
  CHECK(has(tool.out(), "two"));
  CHECK(has(tool.out(), "pid " + std::to_string(pid_of_member(job, 0))));
  CHECK(has(tool.out(), "pid " + std::to_string(pid_of_member(job, 1))));
  kill(pid_of_member(job, 0), SIGKILL);
  CHECK(job.wait() == 0);
  CHECK(job.wait_until_gone());
}

}  // namespace rueda::testing

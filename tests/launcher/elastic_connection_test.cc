// Elastic jobs whose connections between controller and agents end while both live: they are made
// again, and nothing is lost or said twice.
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>

#include "collectives/base/unique_fd.h"
#include "tests/launcher/elastic_jobs.h"

namespace rueda::testing {
namespace {

// Ends every TCP connection that the process has, as a network does that forgets them. Returns how
// many there were.
int cut(pid_t pid) {
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  REQUIRE(process);
  int found = 0;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const int number = std::stoi(entry.path().filename());
    const UniqueFd theirs(static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), number, 0)));
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    if (!theirs || getpeername(theirs.get(), reinterpret_cast<sockaddr*>(&peer), &length) != 0)
      continue;
    if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) continue;
    if (shutdown(theirs.get(), SHUT_RDWR) == 0) ++found;
  }
  return found;
}

constexpr const char* kMadeAgain = "host two: its connection had ended, and was made again";

}  // namespace

TEST_CASE("a rank that is killed while its host's connection is cut is replaced") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "3", "-H", "one:1,two:2", "--min-np", "3"}, {"2+/3:*=end"}));
  REQUIRE(job.wait_for_output("of 3, member", 3));
  wait_for(&job, " is pid ", 3);
  const pid_t lost = pid_of_member(job, 2), agent = agent_of(job, "two");
  kill(agent, SIGSTOP);  // so that it tells of the death over the next connection
  CHECK(cut(agent) >= 1);
  kill(lost, SIGKILL);
  kill(agent, SIGCONT);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(count(job.err(), kMadeAgain) == 1);
  CHECK(count(job.err(), "was lost: killed by signal 9 (SIGKILL); 3 ranks go on from") == 1);
  CHECK(count(job.out(), "epoch 2: rank") == 3);
  CHECK_FALSE(has(job.err(), "is lost"));
  CHECK_FALSE(has(job.err(), "controller has taken over"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a connection may be cut again and again, also when nothing else happens") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "2"}, {"2+/2:*=end"}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  wait_for(&job, " is pid ", 2);
  const pid_t agent = agent_of(job, "two");
  for (int round = 1; round <= 5; ++round) {
    CHECK(cut(agent) >= 1);
    wait_for(&job, kMadeAgain, round);
  }
  kill(pid_of_member(job, 1), SIGKILL);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(count(job.out(), "epoch 2: rank") == 2);
  CHECK_FALSE(has(job.err(), "is lost"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("what ranks write comes once and in order, however often the connection is cut") {
  const HostsFolder folder;
  constexpr int kLines = 300'000;
  Job job({"--rsh-agent", folder.file("there"), "--verbose", "-np", "2", "-H", "one:1,two:1",
           "--min-np", "2", "sh", "-c",
           "until [ -e " + folder.file("go") + " ]; do sleep 0.01; done; seq " +
               std::to_string(kLines) + "; until [ -e " + folder.file("stop") +
               " ]; do sleep 0.01; done"});
  wait_for(&job, " is pid ", 2);
  const pid_t agent = agent_of(job, "two");
  folder.write("go", "");
  for (int round = 1; round <= 5; ++round) {
    cut(agent);
    wait_for(&job, kMadeAgain, round);
  }
  folder.write("stop", "");
  CHECK(job.wait() == 0);
  INFO(job.err());
  int next[2] = {1, 1};
  for (const std::string& line : job.out_lines()) {
    const int rank = line.at(1) == '0' ? 0 : 1;
    if (line != "[" + std::to_string(rank) + "]<stdout>: " + std::to_string(next[rank]++))
      FAIL("after line " << next[rank] - 2 << " of rank " << rank << " came " << line);
  }
  CHECK(next[0] == kLines + 1);
  CHECK(next[1] == kLines + 1);
  CHECK(job.wait_until_gone());
}

TEST_CASE("a job of fixed size loses nothing of what is written while a connection is cut") {
  const HostsFolder folder;
  constexpr int kLines = 1'000'000;  // 7 MB: more than an agent keeps
  const std::string written = folder.file("written");
  Job job({"--rsh-agent", folder.file("there"), "--verbose", "-np", "2", "-H", "one:1,two:1", "sh",
           "-c",
           "until [ -e " + folder.file("go") +
               " ]; do sleep 0.01; done; if [ $RANK = 1 ]; then seq " + std::to_string(kLines) +
               "; touch " + written + "; fi; until [ -e " + folder.file("stop") +
               " ]; do sleep 0.01; done"});
  wait_for(&job, " is pid ", 2);
  const pid_t agent = agent_of(job, "two");
  kill(job.agent(), SIGSTOP);  // ruedarun's child is the controller
  CHECK(cut(agent) >= 1);
  folder.write("go", "");
  // Who kept less than all of it would have read all by then.
  const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  while (!std::filesystem::exists(written) && std::chrono::steady_clock::now() < soon)
    usleep(10'000);
  kill(job.agent(), SIGCONT);
  wait_for(&job, kMadeAgain);
  folder.write("stop", "");
  CHECK(job.wait() == 0);
  INFO(job.err());
  int next = 1;
  for (const std::string& line : job.out_lines()) {
    if (line != "[1]<stdout>: " + std::to_string(next++))
      FAIL("after line " << next - 2 << " came " << line);
  }
  CHECK(next == kLines + 1);
  CHECK_FALSE(has(job.err(), "were dropped"));
  CHECK(job.wait_until_gone());
}

TEST_CASE("a controller may be killed while a connection to it is cut") {
  const HostsFolder folder;
  Job job(command(folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "2"}, {"2+/2:*=end"}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  wait_for(&job, " is pid ", 2);
  const pid_t agent = agent_of(job, "two");
  kill(agent, SIGSTOP);
  CHECK(cut(agent) >= 1);
  kill(job.agent(), SIGKILL);  // ruedarun's child is the controller
  kill(agent, SIGCONT);
  wait_for(&job, "another controller has taken over: 2 hosts, 2 ranks");
  CHECK(cut(agent) >= 1);  // its successor's too
  wait_for(&job, kMadeAgain);
  kill(pid_of_member(job, 1), SIGKILL);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK(count(job.out(), "epoch 2: rank") == 2);
  CHECK(job.wait_until_gone());
}

TEST_CASE("an agent that does not come back in time is lost, and told so when it does") {
  const HostsFolder folder;
  Job job(command(
      folder, {"-np", "2", "-H", "one:1,two:1", "--min-np", "1", "--silence-timeout", "1"}, {}));
  REQUIRE(job.wait_for_output("of 2, member", 2));
  wait_for(&job, " is pid ", 2);
  const pid_t agent = agent_of(job, "two"), rank = pid_of_member(job, 1);
  kill(agent, SIGSTOP);
  CHECK(cut(agent) >= 1);
  wait_for(&job, "is lost: its connection has ended, and no other was made for 1 s");
  wait_for(&job, "epoch 2: rank 0 of 1, member 0 on one");
  kill(agent, SIGCONT);
  CHECK(eventually([&] { return kill(rank, 0) != 0 && kill(agent, 0) != 0; }));
  kill(job.pid(), SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
  INFO(job.out() << job.err());
  CHECK_FALSE(has(job.err(), "was made again"));
  CHECK(job.wait_until_gone());
}

}  // namespace rueda::testing

// What somebody else on this machine sees of a job, and gets from it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/failure/failed_job.h"

using rueda::UniqueFd;
using rueda::testing::abstract_sockets;
using rueda::testing::eventually;
using rueda::testing::Job;
using rueda::testing::job_of;
using rueda::testing::names_in;
using rueda::testing::pid_of_rank;
using rueda::testing::setup_of;
using rueda::testing::socket_inodes;
using rueda::testing::tcp_sockets;

namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<unsigned long> inodes_of(const Job& job) {
  std::set<unsigned long> inodes;
  for (const pid_t pid : job.processes()) inodes.merge(socket_inodes(pid));
  return inodes;
}

// Only loopback, whatever it is; returns how many TCP sockets the job has.
int check_tcp_sockets(const Job& job) {
  const auto inodes = inodes_of(job);
  int count = 0;
  for (const auto& socket : tcp_sockets()) {
    if (inodes.count(socket.inode) == 0) continue;
    ++count;
    INFO((socket.v6 ? "tcp6" : "tcp")
         << " port " << socket.port << (socket.listening ? ", listening" : ""));
    CHECK(socket.loopback);
  }
  return count;
}

std::string key_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  for (const std::string& fd : names_in(folder, "")) {
    char target[256] = "";
    if (readlink((folder + "/" + fd).c_str(), target, sizeof(target) - 1) < 0) continue;
    if (std::strstr(target, "rueda-job-key") != nullptr) return read_file(folder + "/" + fd);
  }
  return "";
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

UniqueFd connect_abstract(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(),
              std::min(name.size(), sizeof(address.sun_path) - 1));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) fd.reset();
  return fd;
}

// Reads whatever comes until the other side closes; false if it does not.
bool gets_closed(int fd) {
  return eventually([fd] {
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, 0) <= 0) return false;
    char bytes[256];
    return recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) <= 0;
  });
}

}  // namespace

TEST_CASE("a job's tcp sockets are on loopback only, and nothing listens once all have met",
          "[failure][security]") {
  Job job(job_of(3, "tcp", {"hold", "mib=1"}), setup_of("tcp"));
  for (int look = 0; look < 20; ++look)
    check_tcp_sockets(job);  // as much of the start as we happen to see
  REQUIRE(job.wait_for_output(" holds", 3));
  CHECK(check_tcp_sockets(job) == 6);  // both ends of one connection for each pair
  const auto inodes = inodes_of(job);
  for (const auto& socket : tcp_sockets())
    CHECK_FALSE((socket.listening && inodes.count(socket.inode) > 0));
  for (const auto& socket : abstract_sockets("rueda-")) {
    INFO(socket.name);                              // connections keep their listener's name
    if (inodes.count(socket.inode) == 0) continue;  // another job's
    // The launcher's, for `rueda status`: it reads one line and answers the own user only.
    if (socket.name.rfind("rueda-status/", 0) == 0) continue;
    CHECK_FALSE(connect_abstract(socket.name).valid());
  }
  kill(job.pid(), SIGTERM);
  CHECK(job.wait() == 143);
}

TEST_CASE("a running job's key is in no environment and no command line", "[failure][security]") {
  Job job(job_of(2, "tcp", {"hold", "mib=1"}), setup_of("tcp"));
  REQUIRE(job.wait_for_output(" holds", 2));
  const std::string key = key_of(pid_of_rank(job, 1));
  REQUIRE(key.size() == 32);
  for (const pid_t pid : job.processes()) {
    for (const char* file : {"/environ", "/cmdline"}) {
      const std::string text = read_file("/proc/" + std::to_string(pid) + file);
      CHECK(text.find(key.substr(0, 8)) == std::string::npos);
      CHECK(text.find(hex(key).substr(0, 16)) == std::string::npos);
    }
  }
  kill(job.pid(), SIGTERM);
  CHECK(job.wait() == 143);
}

TEST_CASE("a stranger without the key is closed and does not keep the ranks from meeting",
          "[failure][security]") {
  // Rank 1 comes late, so that rank 0 can be found waiting.
  Job job(job_of(2, "", {"late", "mib=1", "steps=3"}));
  REQUIRE(job.wait_for_output(" waits", 1));
  std::vector<UniqueFd> strangers;
  REQUIRE(eventually([&] {
    const auto inodes = inodes_of(job);
    for (const auto& socket : abstract_sockets("rueda-")) {
      if (inodes.count(socket.inode) == 0) continue;
      for (int i = 0; i < 3; ++i) strangers.push_back(connect_abstract(socket.name));
      return true;
    }
    return false;
  }));
  // One says nothing, one says nonsense, one much of it.
  for (const auto& stranger : strangers) REQUIRE(stranger.valid());
  const std::string nonsense(4096, 'x');
  CHECK(send(strangers[1].get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
  CHECK(send(strangers[2].get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL) > 0);
  kill(pid_of_rank(job, 1), SIGUSR1);
  CHECK(job.wait() == 0);
  INFO(job.out() << job.err());
  CHECK_THAT(job.out(), Catch::Contains("rank 0 finished") && Catch::Contains("rank 1 finished"));
  for (const auto& stranger : strangers) CHECK(gets_closed(stranger.get()));
}

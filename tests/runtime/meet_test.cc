// Ranks meet without an agent: real sockets, ranks as threads.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <fstream>
#include <future>

#include "runtime/membership/launchers/doors.h"
#include "runtime/membership/launchers/meet.h"
#include "tests/support/folder.h"

namespace rueda::testing {
namespace {

using launchers::MetPeers;
using Clock = std::chrono::steady_clock;

membership::Place place_of(Rank rank, Rank size, bool one_host) {
  membership::Place place;
  place.rank = rank;
  place.size = size;
  place.agentless = true;
  place.one_host = one_host;
  place.job_id = "meet_test/" + std::to_string(getpid());
  place.source = "a test";
  return place;
}

// A port that was free a moment ago.
int free_port() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

std::string key_file(const Folder& folder, const std::string& text, mode_t mode = 0600) {
  const std::string path = folder.file("key" + std::to_string(text.size()));
  std::ofstream(path) << text;
  chmod(path.c_str(), mode);
  return path;
}

struct Outcome {
  Status status;
  std::string value;  // what the last rank had to say
};

// Every rank meets, leaves a word, reads everybody's and parts.
std::vector<Outcome> meet_all(Rank size, bool one_host, const std::vector<Config>& configs,
                              uint64_t epoch = 1) {
  std::vector<std::future<Outcome>> ranks;
  for (Rank rank = 0; rank < size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [=]() -> Outcome {
      const auto place = place_of(rank, size, one_host);
      auto met = launchers::meet(place, configs[static_cast<size_t>(rank) % configs.size()], epoch);
      if (!met.ok()) return {met.status(), ""};
      const auto mine = std::to_string(rank);
      if (const Status set = met->store->set("word/" + mine, "of " + mine); !set.ok())
        return {set, ""};
      std::string value;
      for (Rank other = 0; other < size; ++other) {
        auto word = met->store->get("word/" + std::to_string(other), std::chrono::seconds(60));
        if (!word.ok()) return {word.status(), ""};
        value = word.value();
      }
      return {met->part(place, Clock::now() + std::chrono::seconds(60)), value};
    }));
  }
  std::vector<Outcome> outcomes;
  for (auto& rank : ranks) outcomes.push_back(rank.get());
  return outcomes;
}

void check_met(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.status.to_string());
    CHECK(outcome.status.ok());
    CHECK(outcome.value == "of " + std::to_string(outcomes.size() - 1));
  }
}

TEST_CASE("ranks of one host meet without address or key, again and again", "[meet]") {
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) check_met(meet_all(5, true, {Config()}, epoch));
}

TEST_CASE("with an address and a key file ranks meet over TCP", "[meet]") {
  const Folder folder;
  Config config;
  config.key_file = key_file(folder, "a secret of this test's own");
  config.rendezvous = "127.0.0.1:" + std::to_string(free_port());
  check_met(meet_all(4, false, {config}, 1));
  check_met(meet_all(4, false, {config}, 2));
}

TEST_CASE("rank 0 takes the next port when the launcher's are in use", "[meet]") {
  const Folder folder;
  launchers::Meeting meeting;
  meeting.host = "127.0.0.1";
  meeting.first_port = free_port();
  meeting.ports = 8;
  const auto first = launchers::open_tcp(meeting);
  const auto second = launchers::open_tcp(meeting);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first.value().address != second.value().address);
  // Somebody else's servers accept and stay silent: ranks look further.
  Config config;
  config.key_file = key_file(folder, "a secret of this test's own");
  std::vector<std::future<Status>> ranks;
  for (Rank rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      auto place = place_of(rank, 2, false);
      place.root_host = "127.0.0.1";
      place.root_port = meeting.first_port - 1;
      auto met = launchers::meet(place, config, 1);
      return met.ok() ? met->part(place, Clock::now() + std::chrono::seconds(60)) : met.status();
    }));
  }
  for (auto& rank : ranks) CHECK(rank.get().to_string() == Status().to_string());
}

TEST_CASE("a rank with another key is refused, and the job waits for the right one", "[meet]") {
  const Folder folder;
  Config right, wrong;
  right.key_file = key_file(folder, "a secret of this test's own");
  wrong.key_file = key_file(folder, "another secret, of another length");
  right.rendezvous = wrong.rendezvous = "127.0.0.1:" + std::to_string(free_port());
  auto root = std::async(std::launch::async, [&] {
    const auto place = place_of(0, 2, false);
    auto met = launchers::meet(place, right, 1);
    return met.ok() ? met->part(place, Clock::now() + std::chrono::seconds(60)) : met.status();
  });
  const auto stranger = launchers::meet(place_of(1, 2, false), wrong, 1);
  CHECK(stranger.status().code() == Code::kUnauthenticated);
  CHECK(stranger.status().message().find("RUEDA_KEY_FILE") != std::string::npos);
  const auto place = place_of(1, 2, false);
  auto met = launchers::meet(place, right, 1);
  REQUIRE(met.ok());
  CHECK(met->part(place, Clock::now() + std::chrono::seconds(60)).ok());
  CHECK(root.get().to_string() == Status().to_string());
}

TEST_CASE("key files that others can read, or that hold too little, are refused", "[meet]") {
  const Folder folder;
  using rendezvous::JobKey;
  const auto refused = [](const Status& status, const char* fragment) {
    INFO(status.to_string());
    CHECK(status.code() == Code::kUnauthenticated);
    CHECK(status.message().find(fragment) != std::string::npos);
  };
  refused(JobKey::read_file(key_file(folder, "0123456789abcdef", 0640)).status(), "chmod 600");
  refused(JobKey::read_file(key_file(folder, "short")).status(), "5 bytes");
  refused(JobKey::read_file(key_file(folder, std::string(5000, 'x'))).status(), "16 to 4096");
  refused(JobKey::read_file(folder.file("")).status(), "not a file");
  refused(JobKey::read_file(folder.file("none")).status(), "umask 077");
  const auto a = JobKey::read_file(key_file(folder, "0123456789abcdefg"));
  const auto b = JobKey::read_file(key_file(folder, "0123456789abcdefg\n"));
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  CHECK(a.value().bytes() == b.value().bytes());  // editors add the newline
}

TEST_CASE("a rank that ends before all have met is named at once", "[meet]") {
  std::promise<void> all_here;
  auto here = all_here.get_future().share();
  std::vector<std::future<Status>> ranks;
  for (Rank rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank]() -> Status {
      const auto place = place_of(rank, 3, true);
      auto met = launchers::meet(place, Config(), 7);
      if (!met.ok()) return met.status();
      if (rank == 2) return {};  // its connection ends here
      auto word = met->store->get("word/2", std::chrono::seconds(100));
      if (rank == 0) here.wait();  // the store must outlive rank 1's answer
      return word.status();
    }));
  }
  CHECK(ranks[2].get().ok());
  const Status one = ranks[1].get();
  all_here.set_value();
  for (const Status& status : {one, ranks[0].get()}) {
    INFO(status.to_string());
    CHECK(status.code() == Code::kUnavailable);
    CHECK(status.message().find("rank 2 ended before all ranks had met") != std::string::npos);
  }
}

TEST_CASE("a rank 0 that never comes ends the wait", "[meet]") {
  Config config;
  config.start_timeout_seconds = 0.3;
  const auto met = launchers::meet(place_of(1, 2, true), config, 99);
  INFO(met.status().to_string());
  CHECK(met.status().code() == Code::kDeadlineExceeded);
  CHECK(met.status().message().find("RUEDA_START_TIMEOUT") != std::string::npos);
}

TEST_CASE("two jobs of one name are told", "[meet]") {
  const auto place = place_of(0, 2, true);
  auto first = launchers::meet(place, Config(), 50);
  REQUIRE(first.ok());
  const auto second = launchers::meet(place, Config(), 50);
  INFO(second.status().to_string());
  CHECK(second.status().code() == Code::kFailedPrecondition);
  CHECK(second.status().message().find("RUEDA_JOB_ID") != std::string::npos);
}

TEST_CASE("another user's process at the meeting place is not trusted", "[meet]") {
  if (geteuid() != 0) {
    WARN("needs root to act as another user: not run");
    return;
  }
  const auto place = place_of(1, 2, true);
  const std::string name = launchers::unix_name(place.job_id, 60);
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    close(ends[0]);
    const bool changed = setresuid(65534, 65534, 65534) == 0;
    const auto door = launchers::open_unix(name);
    if (!changed || !door.ok() || write(ends[1], &byte, 1) != 1) _exit(1);
    shutdown(ends[1], SHUT_WR);
    [[maybe_unused]] const ssize_t n = read(ends[1], &byte, 1);  // until the test is done
    _exit(0);
  }
  char byte = 0;
  close(ends[1]);
  REQUIRE(read(ends[0], &byte, 1) == 1);
  const auto met = launchers::meet(place, Config(), 60);
  INFO(met.status().to_string());
  CHECK(met.status().code() == Code::kPermissionDenied);
  close(ends[0]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
}

}  // namespace
}  // namespace rueda::testing

// What the mesh refuses: strangers, half-open connections, the wrong key; and that none of them
// disturbs the job.
#include "runtime/membership/mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>

#include <cstring>
#include <fstream>
#include <iomanip>
#include <sstream>

#include "runtime/rendezvous/handshake.h"
#include "runtime/rendezvous/memory_store.h"
#include "tests/support/thread_world.h"

namespace rueda::membership {
namespace {

using rendezvous::JobKey;
using testing::must;
using testing::on_ranks;

Deadline in(std::chrono::seconds time) { return std::chrono::steady_clock::now() + time; }

// Two ranks of one job, as threads, whose listening sockets the test knows before they meet.
struct Pair {
  JobKey key = must(JobKey::make_random());
  std::chrono::seconds time{300};  // to meet
  Listener unix_listeners[2] = {must(listen_unix(256)), must(listen_unix(256))};
  Listener tcp_listeners[2] = {must(listen_tcp("127.0.0.1", 256)),
                               must(listen_tcp("127.0.0.1", 256))};

  MeshTask task(Rank rank, bool local) {
    MeshTask task;
    task.rank = rank;
    task.epoch = 3;
    task.job_id = "job";
    for (int peer = 0; peer < 2; ++peer) {
      task.peers.push_back(
          {local, local ? unix_listeners[peer].address : tcp_listeners[peer].address});
      task.names.push_back("rank " + std::to_string(peer));
    }
    task.unix_listener = &unix_listeners[rank];
    task.tcp_listener = &tcp_listeners[rank];
    task.deadline = in(time);
    task.alive = [](Rank) { return Status(); };
    return task;
  }

  // Both ranks meet; true if a byte goes from each to the other.
  bool meet(bool local) {
    auto sockets = on_ranks(2, [&](Rank rank) {
      MeshSockets all;
      const Status met = connect_mesh(task(rank, local), key, &all);
      if (!met.ok()) throw std::runtime_error(met.to_string());
      return std::make_shared<UniqueFd>(std::move(all[static_cast<size_t>(1 - rank)].front()));
    });
    for (const int from : {0, 1}) {
      char byte = static_cast<char>('a' + from);
      if (send(sockets[static_cast<size_t>(from)]->get(), &byte, 1, MSG_NOSIGNAL) != 1)
        return false;
      if (!wait_ready(sockets[static_cast<size_t>(1 - from)]->get(), false,
                      in(std::chrono::seconds(60))))
        return false;
      char got = 0;
      if (recv(sockets[static_cast<size_t>(1 - from)]->get(), &got, 1, 0) != 1 || got != byte)
        return false;
    }
    return true;
  }
};

UniqueFd stranger(const Pair& pair, bool local) {
  return local ? must(connect_unix(pair.unix_listeners[0].address))
               : must(connect_tcp(pair.tcp_listeners[0].address, in(std::chrono::seconds(60))));
}

// Reads until the other side closes; true if it did.
bool is_closed_by_peer(int fd) {
  char bytes[256];
  while (wait_ready(fd, false, in(std::chrono::seconds(60)))) {
    const ssize_t got = recv(fd, bytes, sizeof(bytes), 0);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return true;
  }
  return false;
}

TEST_CASE("a connection that does not speak the handshake is closed, and the ranks meet",
          "[mesh]") {
  const bool local = GENERATE(false, true);
  Pair pair;
  const UniqueFd rude = stranger(pair, local);
  const std::string noise = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + std::string(2000, 'x');
  REQUIRE(send(rude.get(), noise.data(), noise.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(noise.size()));
  CHECK(pair.meet(local));
  CHECK(is_closed_by_peer(rude.get()));
}

TEST_CASE("a rank with another key is refused, and the ranks meet", "[mesh]") {
  const bool local = GENERATE(false, true);
  Pair pair;
  const JobKey other = must(JobKey::make_random());
  std::vector<UniqueFd> guests;
  std::vector<std::thread> threads;
  std::vector<Status> ended(4);
  for (size_t i = 0; i < ended.size(); ++i) {
    guests.push_back(stranger(pair, local));
    threads.emplace_back([&, i, fd = guests.back().get()] {
      rendezvous::HandshakeTerms terms;
      terms.role = rendezvous::HandshakeRole::kConnecting;
      terms.my_rank = 1;
      terms.peer = 0;
      terms.size = 2;
      terms.epoch = 3;
      terms.job_id = std::string("job") + (local ? "/shm" : "/tcp");
      ended[i] = rendezvous::shake_hands(fd, terms, other, in(std::chrono::seconds(60))).status();
    });
  }
  CHECK(pair.meet(local));
  for (auto& thread : threads) thread.join();
  for (const Status& status : ended) CHECK_FALSE(status.ok());
}

TEST_CASE("hundreds of half-open connections do not keep the ranks from meeting", "[mesh]") {
  const bool local = GENERATE(false, true);
  Pair pair;
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(stranger(pair, local));
  CHECK(pair.meet(local));
}

TEST_CASE("a rank without descriptors says so at once", "[mesh]") {
  Pair pair;
  const UniqueFd caller = stranger(pair, true);
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few = {64, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  std::vector<UniqueFd> held;
  for (UniqueFd fd; (fd = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)));)
    held.push_back(std::move(fd));
  MeshSockets sockets;
  const Status status = connect_mesh(pair.task(0, true), pair.key, &sockets);
  held.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK_THAT(status.message(), Catch::Contains("cannot accept the connection of another rank") &&
                                   Catch::Contains("64 descriptors open (ulimit -n)"));
}

TEST_CASE("a crowd of strangers does not keep the ranks from meeting", "[mesh]") {
  // Far more than are let in at once, all before the rank; half of them say nothing, half begin to
  // speak and stop. If each had the time of a single guest, they would take half a minute.
  Pair pair;
  pair.tcp_listeners[0] = must(listen_tcp("127.0.0.1", 4096));
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 2000; ++i) {
    crowd.push_back(stranger(pair, false));
    if (i % 2 == 0) CHECK(send(crowd.back().get(), "RU", 2, MSG_NOSIGNAL) == 2);
  }
  pair.time = std::chrono::seconds(30);
  CHECK(pair.meet(false));
}

TEST_CASE("ports are opened on loopback only unless an address is given", "[mesh]") {
  // Listening sockets of this process: inode by /proc/self/fd, address by /proc/net/tcp and tcp6.
  rendezvous::MemoryStore store;
  const JobKey key = must(JobKey::make_random());
  const auto worlds = on_ranks(2, [&](Rank rank) {
    JoinOptions options;
    options.place.rank = rank;
    options.place.size = 2;
    options.place.job_id = "job";
    options.config.transport = "tcp";
    return std::shared_ptr<Joined>(must(join(options, &store, &key)));
  });
  for (Rank rank = 0; rank < 2; ++rank) {
    const std::string address =
        must(store.get("e1/tcp/" + std::to_string(rank), std::chrono::seconds(1)));
    CHECK_THAT(address, Catch::StartsWith("127.0.0.1:"));
  }
  const Listener four = must(listen_tcp("127.0.0.1", 1));
  std::ostringstream hex;
  hex << std::uppercase << std::hex << std::setw(4) << std::setfill('0')
      << std::stoi(four.address.substr(four.address.rfind(':') + 1));
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::string bound;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local_address, remote, state;
    words >> number >> local_address >> remote >> state;
    if (state == "0A" && local_address.substr(local_address.find(':') + 1) == hex.str())
      bound = local_address;
  }
  CHECK_THAT(bound, Catch::StartsWith("0100007F:"));  // what the kernel says of 127.0.0.1
}

TEST_CASE("ranks see the heaps of their host's ranks, at one address in one process", "[mesh]") {
  using testing::Kind;
  const Kind kind = GENERATE(Kind::kInproc, Kind::kShm, Kind::kTcp, Kind::kHybrid);
  const auto worlds = testing::make_worlds(kind, 4);
  for (Rank me = 0; me < 4; ++me) {
    const auto& heaps = worlds[static_cast<size_t>(me)]->memory().heaps;
    REQUIRE(heaps.size() == 4);
    for (Rank peer = 0; peer < 4; ++peer) {
      const bool shared = kind == Kind::kShm || (kind == Kind::kHybrid && me % 2 == peer % 2);
      INFO(testing::name_of(kind) << ": " << me << " looks at " << peer);
      REQUIRE((heaps[static_cast<size_t>(peer)] != nullptr) == shared);
      // The ranks of this test are threads of one process, which has one heap.
      if (!shared) continue;
      CHECK(heaps[static_cast<size_t>(peer)]->base() == host::Heap::existing()->base());
    }
  }
}

}  // namespace
}  // namespace rueda::membership

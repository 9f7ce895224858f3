// What only the store behind a socket does: hellos, reports, a dying server, misbehaving clients.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <random>
#include <string>
#include <thread>

#include "collectives/base/log.h"
#include "collectives/rendezvous/store_frame.h"
#include "proto/store_codec.h"
#include "tests/rendezvous/store_worlds.h"

namespace rueda::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

constexpr auto kLong = 60s;

// A client that writes whatever it likes.
struct RawClient {
  RawClient(StoreServer& server, Rank rank) {
    log::init_log("fatal", "store test");  // the server's warnings are expected here
    auto [ours, theirs] = stream_pair();
    fd = std::move(ours);
    RUEDA_CHECK(server.add(std::move(theirs), rank).ok(), "add");
  }
  // Writes what is taken without waiting; returns how much.
  size_t push(const std::string& bytes) {
    const ssize_t n = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 ? 0 : static_cast<size_t>(n);
  }
  // Waits until the server has closed the stream.
  bool is_cut_off() {
    char sink[4096];
    for (;;) {
      if (!poll_until(fd.get(), POLLIN, deadline_in(kLong)).ok()) return false;
      const ssize_t n = recv(fd.get(), sink, sizeof(sink), MSG_DONTWAIT);
      if (n <= 0) return true;
    }
  }
  UniqueFd fd;
};

std::string request_frame(wire::StoreOp op, uint64_t id, const std::string& key,
                          const std::string& value = "", uint64_t timeout_ns = 0) {
  wire::StoreRequest request;
  request.id = id;
  request.op = op;
  request.key = key;
  request.value = value;
  request.timeout_ns = timeout_ns;
  return framed(wire::encode(request));
}

void check_serves(StoreClient& client, const std::string& key) {
  CHECK(client.set(key, "value").to_string() == "ok");
  CHECK(client.get(key, kLong).value() == "value");
}

}  // namespace

TEST_CASE("hello counts the hellos of each rank", "[store]") {
  SocketWorld world(2);
  CHECK(world.client(0).hello().value() == 1);
  CHECK(world.client(0).hello().value() == 2);
  CHECK(world.client(1).hello().value() == 1);
}

TEST_CASE("a second client on a duplicate of the stream goes on counting", "[store]") {
  auto server = std::move(StoreServer::start()).value();
  auto [ours, theirs] = stream_pair();
  REQUIRE(server->add(std::move(theirs), 0).ok());
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    StoreClient client(UniqueFd(fcntl(ours.get(), F_DUPFD_CLOEXEC, 0)));
    CHECK(client.hello().value() == epoch);
    check_serves(client, "e" + std::to_string(epoch) + "/place/0");
  }
}

TEST_CASE("reports are kept with the rank that made them, up to a number", "[store]") {
  SocketWorld world(2);
  CHECK(world.client(1).report("failure", "allreduce 'w': shapes differ").ok());
  CHECK(world.client(0).report("failure", "rank 1 was lost").ok());
  const auto reports = world.server().reports();
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].rank == 1);
  CHECK(reports[0].key == "failure");
  CHECK(reports[0].value == "allreduce 'w': shapes differ");
  CHECK(reports[1].rank == 0);
  CHECK(reports[0].time <= reports[1].time);

  for (size_t i = 1; i < StoreServer::kMaxReports; ++i) {
    CHECK(world.client(1).report("failure", "again").ok());
  }
  CHECK(world.client(1).report("failure", "again").code() == Code::kResourceExhausted);
  CHECK(world.client(0).report("failure", "again").ok());
}

TEST_CASE("one client cannot fill the store", "[store]") {
  SocketWorld world(2);
  const std::string largest(kMaxValueBytes, 'x');
  Status last;
  int stored = 0;
  while (last.ok() && stored < 100) {
    last = world.client(0).set("k/" + std::to_string(stored), largest);
    if (last.ok()) ++stored;
  }
  CHECK(last.code() == Code::kResourceExhausted);
  CHECK(stored == 63);
  check_serves(world.client(1), "e1/place/1");
}

TEST_CASE("when the server ends, waiting and later calls name the launcher", "[store]") {
  auto server = std::move(StoreServer::start()).value();
  auto [ours, theirs] = stream_pair();
  REQUIRE(server->add(std::move(theirs), 0).ok());
  StoreClient client(std::move(ours));
  REQUIRE(client.hello().ok());
  std::vector<std::future<Result<std::string>>> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(std::async(std::launch::async, [&] { return client.get("never", kLong); }));
  }
  server->stop();
  for (auto& call : waiting) {
    const Status status = call.get().status();
    CHECK(status.code() == Code::kUnavailable);
    CHECK_THAT(status.message(), Contains("the launcher is gone"));
  }
  CHECK(client.set("k", "v").code() == Code::kUnavailable);
  CHECK(client.hello().status().code() == Code::kUnavailable);
  CHECK(server->add(UniqueFd(), 1).code() == Code::kCancelled);
}

TEST_CASE("a launcher that sends nonsense loses the client, not the other way round", "[store]") {
  const std::string nonsense =
      GENERATE(std::string("\xff\xff\xff\xff", 4), std::string("\x02\0\0\0\x0a\x7f", 6));
  auto [ours, theirs] = stream_pair();
  StoreClient client(std::move(ours));
  REQUIRE(send(theirs.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL) > 0);
  CHECK(client.hello().status().code() == Code::kUnavailable);
  CHECK(client.set("k", "v").code() == Code::kUnavailable);
}

TEST_CASE("a rank that takes a dead one's place has its keys again", "[store]") {
  SocketWorld world(2);
  world.mark_dead(1, "rank 1 was lost");
  CHECK(world.client(0).get("e1/place/1", kLong).status().code() == Code::kUnavailable);
  auto [ours, theirs] = stream_pair();
  REQUIRE(world.server().add(std::move(theirs), 1).ok());
  StoreClient successor(std::move(ours));
  CHECK(successor.set("e2/place/1", "new").ok());
  CHECK(world.client(0).get("e2/place/1", kLong).value() == "new");
}

TEST_CASE("a client that sends an oversized length or garbage is cut off alone", "[store]") {
  SocketWorld world(1);
  const std::string bytes =
      GENERATE(std::string("\xff\xff\xff\xff", 4), std::string("\x01\x00\x20\x00", 4),
               std::string("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
               std::string("\x02\0\0\0\x0a\x7f", 6), std::string("\x02\0\0\0\x10\x63", 6));
  RawClient hostile(world.server(), 5);
  hostile.push(bytes);
  CHECK(hostile.is_cut_off());
  check_serves(world.client(0), "e1/place/0");
}

TEST_CASE("random bytes from a client never disturb the others", "[store]") {
  SocketWorld world(1);
  std::mt19937_64 engine(11);
  for (int round = 0; round < 50; ++round) {
    std::string bytes(4 + engine() % 300, '\0');
    for (char& c : bytes) c = static_cast<char>(engine());
    if (round % 2 == 0)
      store_little(static_cast<uint32_t>(engine() % 64), reinterpret_cast<uint8_t*>(bytes.data()));
    RawClient hostile(world.server(), 5);
    hostile.push(bytes);
    shutdown(hostile.fd.get(), SHUT_WR);
    REQUIRE(hostile.is_cut_off());
  }
  check_serves(world.client(0), "e1/place/0");
  CHECK(world.server().connections() == 1);
}

TEST_CASE("a client that sends byte by byte is served while others are not kept waiting",
          "[store]") {
  SocketWorld world(1);
  RawClient slow(world.server(), 5);
  int i = 0;
  for (const char c : request_frame(wire::StoreOp::kSet, 1, "slow/5", "value")) {
    slow.push(std::string(1, c));
    check_serves(world.client(0), "key" + std::to_string(i++) + "/0");
  }
  CHECK(world.client(0).get("slow/5", kLong).value() == "value");
}

TEST_CASE("what a client has the server buffer is bounded", "[store]") {
  SocketWorld world(1);
  REQUIRE(world.client(0).set("large/0", std::string(kMaxValueBytes, 'x')).ok());
  SECTION("one that announces the largest frame and stops before its end") {
    RawClient client(world.server(), 5);
    std::string frame(kFrameHeaderBytes + kMaxFrameBytes - 1, 'x');
    store_little(static_cast<uint32_t>(kMaxFrameBytes), reinterpret_cast<uint8_t*>(frame.data()));
    for (size_t done = 0; done < frame.size();) {
      REQUIRE(poll_until(client.fd.get(), POLLOUT, deadline_in(kLong)).ok());
      done += client.push(frame.substr(done));
    }
    check_serves(world.client(0), "e1/place/0");
    CHECK(world.server().buffered_bytes() < 3 * kMaxFrameBytes);
  }
  SECTION("one that asks for the largest value again and again and never reads") {
    RawClient client(world.server(), 5);
    const std::string ask = request_frame(wire::StoreOp::kGet, 1, "large/0");
    size_t asked = 0;
    for (int quiet = 0; quiet < 20 && asked < 100'000;) {
      const size_t pushed = client.push(ask);
      if (pushed == ask.size()) {
        ++asked;
        quiet = 0;
      } else {
        REQUIRE(pushed == 0);  // small frames go whole or not at all
        ++quiet;
        check_serves(world.client(0), "k" + std::to_string(asked) + "-" + std::to_string(quiet));
      }
    }
    CHECK(asked < 100'000);  // the server stopped reading
    CHECK(world.server().buffered_bytes() < 4 * kMaxFrameBytes);
    check_serves(world.client(0), "e1/place/0");
  }
  SECTION("one that waits for more keys than it may") {
    RawClient client(world.server(), 5);
    std::string asks;
    for (uint64_t id = 0; id < 4 * StoreConnection::kMaxRequests; ++id) {
      asks += request_frame(wire::StoreOp::kGet, id, "never", "", ~uint64_t{0});
    }
    client.push(asks);
    check_serves(world.client(0), "e1/place/0");
    CHECK(world.server().buffered_bytes() < kMaxFrameBytes);
  }
}

TEST_CASE("a client that vanishes with a request under way harms nobody", "[store]") {
  SocketWorld world(1);
  {
    RawClient client(world.server(), 5);
    client.push(request_frame(wire::StoreOp::kGet, 1, "never", "", ~uint64_t{0}));
    client.push(request_frame(wire::StoreOp::kGet, 2, "never").substr(0, 5));
  }
  check_serves(world.client(0), "e1/place/0");
  CHECK(world.client(0).set("never", "now").ok());
}

}  // namespace rueda::rendezvous::testing

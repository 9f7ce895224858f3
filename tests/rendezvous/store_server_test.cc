// What only the store behind a socket does: reports, a dying server, misbehaving clients.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <random>
#include <string>
#include <thread>

#include "collectives/base/log.h"
#include "proto/store_codec.h"
#include "runtime/rendezvous/store_frame.h"
#include "tests/rendezvous/store_worlds.h"

namespace rueda::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

constexpr auto kPatience = 60s;

// A client that writes whatever it likes.
struct RawClient {
  RawClient(StoreServer& server, uint64_t member) {
    log::init_log("fatal", "store test");  // the server's warnings are expected here
    auto [ours, theirs] = stream_pair();
    fd = std::move(ours);
    RUEDA_CHECK(server.add(std::move(theirs), member).ok(), "add");
  }
  // Writes what is taken without waiting; returns how much.
  size_t push(const std::string& bytes) {
    const ssize_t n = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 ? 0 : static_cast<size_t>(n);
  }
  // An empty reply (id 0) when the stream ended.
  wire::StoreReply next_reply() {
    wire::StoreReply reply;
    std::string bytes(kFrameHeaderBytes, '\0');
    if (recv(fd.get(), bytes.data(), bytes.size(), MSG_WAITALL) != ssize_t{kFrameHeaderBytes}) {
      return reply;
    }
    bytes.resize(frame_length(bytes));
    recv(fd.get(), bytes.data(), bytes.size(), MSG_WAITALL);
    RUEDA_CHECK(wire::decode(bytes, &reply).ok(), "reply");
    return reply;
  }
  // Waits until the server has closed the stream.
  bool is_cut_off() {
    char sink[4096];
    for (;;) {
      if (!poll_until(fd.get(), POLLIN, deadline_in(kPatience)).ok()) return false;
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
  CHECK(client.get(key, kPatience).value() == "value");
}

// Writes `ask` again and again until the server takes no more, or kEndless times. Between refusals
// another client is served, so the server has had its turns.
constexpr size_t kEndless = 50'000;
size_t asks_taken(RawClient& client, const std::string& ask, StoreClient& other) {
  size_t asked = 0;
  for (int refused = 0; refused < 20 && asked < kEndless;) {
    const size_t pushed = client.push(ask);  // small frames go whole or not at all
    if (pushed == ask.size()) {
      ++asked;
      refused = 0;
    } else {
      ++refused;
      check_serves(other, "k" + std::to_string(asked) + "-" + std::to_string(refused));
    }
  }
  return asked;
}

}  // namespace

TEST_CASE("reports are kept with the rank that made them, up to a number", "[store]") {
  SocketWorld world(2);
  CHECK(world.client(1).report("failure", "allreduce 'w': shapes differ").ok());
  CHECK(world.client(0).report("failure", "rank 1 was lost").ok());
  const auto reports = world.server().reports();
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].member == 1);
  CHECK(reports[0].key == "failure");
  CHECK(reports[0].value == "allreduce 'w': shapes differ");
  CHECK(reports[1].member == 0);
  CHECK(reports[0].time <= reports[1].time);

  for (size_t i = 1; i < StoreServer::kMaxReports; ++i) {
    CHECK(world.client(1).report("failure", "again").ok());
  }
  CHECK(world.client(1).report("failure", "again").code() == Code::kResourceExhausted);
  CHECK(world.client(0).report("failure", "again").ok());
}

TEST_CASE("who asks after a death among ranks that meet once does not wait", "[store]") {
  log::init_log("fatal", "store test");
  auto server = std::move(StoreServer::start("parted")).value();
  std::vector<std::unique_ptr<StoreClient>> clients;
  for (uint64_t rank = 0; rank < 3; ++rank) {
    auto [ours, theirs] = stream_pair();
    REQUIRE(server->add(std::move(theirs), rank).ok());
    clients.push_back(std::make_unique<StoreClient>(std::move(ours)));
  }
  CHECK(clients[1]->set("e1/place/1", "here").ok());
  clients[1].reset();
  // That it was there is known; rank 2, which lives, will never come.
  CHECK(clients[0]->get("e1/done/1", kPatience).status().code() == Code::kUnavailable);
  const Status waits = clients[0]->get("e1/place/2", kPatience).status();
  CHECK(waits.code() == Code::kUnavailable);
  CHECK(waits.facts().rank == 1);
}

TEST_CASE("users' keys change, are added to, compared and erased", "[store]") {
  SocketWorld world(2);
  StoreClient &a = world.client(0), &b = world.client(1);
  CHECK(a.put("x", "one").ok());
  CHECK(b.put("x", "two").ok());
  CHECK(a.get_user("x", kPatience).value() == "two");
  CHECK(a.add("n", 3).value() == 3);
  CHECK(b.add("n", -5).value() == -2);
  CHECK(a.get_user("n", kPatience).value() == "-2");
  CHECK(a.add("x", 1).status().code() == Code::kInvalidArgument);
  CHECK(a.add("n", INT64_MIN).status().code() == Code::kInvalidArgument);

  CHECK_FALSE(a.compare_set("c", "something", "new").value().is_set);
  auto held = a.compare_set("c", "", "first");
  CHECK(held.value().is_set);
  CHECK(held.value().value == "first");
  CHECK(b.compare_set("c", "", "second").value().value == "first");
  CHECK(b.compare_set("c", "first", "second").value().value == "second");

  CHECK(a.erase("c").value());
  CHECK_FALSE(a.erase("c").value());
  CHECK(b.get_user("c", 0ns).status().code() == Code::kDeadlineExceeded);
  // What ranks tell each other at init is not theirs to change.
  CHECK(a.set("e1/place/0", "here").ok());
  CHECK(b.put("e1/place/0", "elsewhere").ok());
  CHECK(b.get("e1/place/0", kPatience).value() == "here");
}

TEST_CASE("a get waits for a user's key however it is set", "[store]") {
  SocketWorld world(2);
  const std::vector<std::function<void(StoreClient&, const std::string&)>> ways = {
      [](StoreClient& c, const std::string& key) { CHECK(c.put(key, "1").ok()); },
      [](StoreClient& c, const std::string& key) { CHECK(c.add(key, 1).ok()); },
      [](StoreClient& c, const std::string& key) { CHECK(c.compare_set(key, "", "1").ok()); }};
  for (size_t i = 0; i < ways.size(); ++i) {
    const std::string key = "k" + std::to_string(i);
    auto waits =
        std::async(std::launch::async, [&] { return world.client(0).get_user(key, kPatience); });
    ways[i](world.client(1), key);
    CHECK(waits.get().value() == "1");
  }
}

TEST_CASE("additions of many clients all count", "[store]") {
  SocketWorld world(4);
  std::vector<std::future<void>> adding;
  for (Rank rank = 0; rank < 4; ++rank) {
    adding.push_back(std::async(std::launch::async, [&world, rank] {
      for (int i = 0; i < 200; ++i) (void)world.client(rank).add("sum", 1);
    }));
  }
  for (auto& each : adding) each.get();
  CHECK(world.client(0).add("sum", 0).value() == 800);
}

TEST_CASE("users' keys take a bounded room, which erasing gives back", "[store]") {
  SocketWorld world(1);
  StoreClient& client = world.client(0);
  const std::string large(kMaxValueBytes, 'x');
  size_t fits = 0;
  while (client.put("k" + std::to_string(fits), large).ok()) ++fits;
  CHECK(fits == KeyTable::kMostUserBytes / kMaxValueBytes - 1);
  CHECK(client.put("more", large).code() == Code::kResourceExhausted);
  CHECK(client.put("k0", large).ok());  // in place of what was there
  CHECK(client.erase("k0").value());
  CHECK(client.put("more", large).ok());
  CHECK(client.put("", "x").ok());  // its key is "user/"
  CHECK(client.put(std::string(kMaxKeyBytes, 'k'), "x").code() == Code::kInvalidArgument);
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
  REQUIRE(client.set("here", "v").ok());
  std::vector<std::future<Result<std::string>>> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(
        std::async(std::launch::async, [&] { return client.get("never", kPatience); }));
  }
  server->stop();
  for (auto& call : waiting) {
    const Status status = call.get().status();
    CHECK(status.code() == Code::kUnavailable);
    CHECK_THAT(status.message(), Contains("the launcher is gone"));
  }
  CHECK(client.set("k", "v").code() == Code::kUnavailable);
  CHECK(client.enter({}, deadline_in(kPatience)).status().code() == Code::kUnavailable);
  CHECK(server->add(UniqueFd(), 1).code() == Code::kCancelled);
}

TEST_CASE("a launcher that sends nonsense loses the client, not the other way round", "[store]") {
  const std::string nonsense =
      GENERATE(std::string("\xff\xff\xff\xff", 4), std::string("\x02\0\0\0\x0a\x7f", 6));
  auto [ours, theirs] = stream_pair();
  StoreClient client(std::move(ours));
  REQUIRE(send(theirs.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL) > 0);
  CHECK(client.report("failure", "x").code() == Code::kUnavailable);
  CHECK(client.set("k", "v").code() == Code::kUnavailable);
}

TEST_CASE(
    "a death ends the gets that already wait, whatever their key, but not the dead rank's own",
    "[store]") {
  SocketWorld world(1);
  RawClient survivor(world.server(), 1);
  RawClient dead(world.server(), 2);
  for (RawClient* client : {&survivor, &dead}) {
    // Requests are handled in order: once the report is answered, the get waits.
    client->push(request_frame(wire::StoreOp::kGet, 1, "e1/place/0", "", ~uint64_t{0}));
    client->push(request_frame(wire::StoreOp::kReport, 2, "failure"));
    CHECK(client->next_reply().id == 2);
  }
  world.mark_dead(2, "rank 2 was lost");
  const wire::StoreReply told = survivor.next_reply();
  CHECK(told.id == 1);
  CHECK(told.code == Code::kUnavailable);
  CHECK(told.message == "rank 2 was lost");
  REQUIRE(world.client(0).set("e1/place/0", "address").ok());
  CHECK(dead.next_reply().value == "address");
  survivor.push(request_frame(wire::StoreOp::kReport, 3, "failure"));
  CHECK(survivor.next_reply().id == 3);  // the get was answered once
}

TEST_CASE("answers reach the thread that asked, in whatever order they come", "[store]") {
  const bool backwards = GENERATE(false, true);
  constexpr size_t kThreads = 16;
  auto [ours, theirs] = stream_pair();
  StoreClient client(std::move(ours));
  std::vector<std::future<std::string>> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.push_back(std::async(std::launch::async, [&client, i] {
      const auto found = client.get(std::to_string(i), kPatience);
      return found.ok() ? found.value() : found.status().to_string();
    }));
  }
  // The test is the launcher: it answers each get with its key once all have asked.
  std::vector<wire::StoreRequest> requests(kThreads);
  for (wire::StoreRequest& request : requests) {
    std::string bytes(kFrameHeaderBytes, '\0');
    REQUIRE(recv(theirs.get(), bytes.data(), bytes.size(), MSG_WAITALL) == 4);
    bytes.resize(frame_length(bytes));
    REQUIRE(recv(theirs.get(), bytes.data(), bytes.size(), MSG_WAITALL) > 0);
    REQUIRE(wire::decode(bytes, &request).ok());
  }
  if (backwards) std::reverse(requests.begin(), requests.end());
  for (const wire::StoreRequest& request : requests) {
    wire::StoreReply reply;
    reply.id = request.id;
    reply.value = request.key;
    const std::string frame = framed(wire::encode(reply));
    REQUIRE(send(theirs.get(), frame.data(), frame.size(), MSG_NOSIGNAL) > 0);
  }
  for (size_t i = 0; i < kThreads; ++i) CHECK(threads[i].get() == std::to_string(i));
}

TEST_CASE("a stopped launcher costs a peek or a report a moment, and nothing else", "[store]") {
  auto [ours, theirs] = stream_pair();
  StoreClient client(std::move(ours));
  const auto next_request = [&launcher = theirs] {
    wire::StoreRequest request;
    std::string bytes(kFrameHeaderBytes, '\0');
    REQUIRE(recv(launcher.get(), bytes.data(), bytes.size(), MSG_WAITALL) == 4);
    bytes.resize(frame_length(bytes));
    REQUIRE(recv(launcher.get(), bytes.data(), bytes.size(), MSG_WAITALL) > 0);
    REQUIRE(wire::decode(bytes, &request).ok());
    return request;
  };
  const auto answer = [&launcher = theirs](const wire::StoreRequest& request) {
    wire::StoreReply reply;
    reply.id = request.id;
    reply.value = "of " + request.key;
    const std::string frame = framed(wire::encode(reply));
    REQUIRE(send(launcher.get(), frame.data(), frame.size(), MSG_NOSIGNAL) > 0);
  };
  const bool another_waits = GENERATE(false, true);
  std::future<Result<std::string>> waiting;
  wire::StoreRequest asked;
  if (another_waits) {
    waiting = std::async(std::launch::async, [&client] { return client.get("a", kPatience); });
    asked = next_request();
  }
  const auto begin = std::chrono::steady_clock::now();
  CHECK(client.peek("b").status().code() == Code::kDeadlineExceeded);
  CHECK(client.report("failure", "rank 1 was lost").code() == Code::kDeadlineExceeded);
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(took >= 2 * StoreClient::kMoment);
  CHECK(took < StoreClient::kGrace);
  // It goes on: what it was asked meanwhile is answered late, and disturbs nobody.
  answer(next_request());
  answer(next_request());
  if (another_waits) {
    answer(asked);
    CHECK(waiting.get().value() == "of a");
  }
  auto later = std::async(std::launch::async, [&client] { return client.get("c", kPatience); });
  answer(next_request());
  CHECK(later.get().value() == "of c");
}

TEST_CASE("a peek says what a key holds, or at once that it holds nothing", "[store]") {
  SocketWorld world(2);
  CHECK(world.client(0).peek("e1/verdict").status().code() == Code::kDeadlineExceeded);
  REQUIRE(world.client(1).set("e1/verdict", "rank 2 is missing").ok());
  CHECK(world.client(0).peek("e1/verdict").value() == "rank 2 is missing");
}

TEST_CASE("a rank that takes a dead one's place has its keys again", "[store]") {
  SocketWorld world(2);
  world.mark_dead(1, "rank 1 was lost");
  CHECK(world.client(0).get("e1/place/1", kPatience).status().code() == Code::kUnavailable);
  auto [ours, theirs] = stream_pair();
  REQUIRE(world.server().add(std::move(theirs), 1).ok());
  StoreClient successor(std::move(ours));
  CHECK(successor.set("e2/place/1", "new").ok());
  CHECK(world.client(0).get("e2/place/1", kPatience).value() == "new");
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
  CHECK(world.client(0).get("slow/5", kPatience).value() == "value");
}

TEST_CASE("what a client has the server buffer is bounded", "[store]") {
  SocketWorld world(1);
  REQUIRE(world.client(0).set("large/0", std::string(kMaxValueBytes, 'x')).ok());
  SECTION("one that announces the largest frame and stops before its end") {
    RawClient client(world.server(), 5);
    std::string frame(kFrameHeaderBytes + kMaxFrameBytes - 1, 'x');
    store_little(static_cast<uint32_t>(kMaxFrameBytes), reinterpret_cast<uint8_t*>(frame.data()));
    for (size_t done = 0; done < frame.size();) {
      REQUIRE(poll_until(client.fd.get(), POLLOUT, deadline_in(kPatience)).ok());
      done += client.push(frame.substr(done));
    }
    CHECK(world.server().buffered_bytes() < 3 * kMaxFrameBytes);
  }
  SECTION("one that asks for the largest value again and again and never reads") {
    RawClient client(world.server(), 5);
    const std::string ask = request_frame(wire::StoreOp::kGet, 1, "large/0");
    CHECK(asks_taken(client, ask, world.client(0)) < kEndless);
    CHECK(world.server().buffered_bytes() < 4 * kMaxFrameBytes);
  }
  SECTION("one that waits for more keys than it may") {
    RawClient client(world.server(), 5);
    const std::string ask = request_frame(wire::StoreOp::kGet, 1, "never", "", ~uint64_t{0});
    CHECK(asks_taken(client, ask, world.client(0)) < kEndless);
  }
  check_serves(world.client(0), "e1/place/0");
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

// The store and the epochs of a job: who asks to enter, what it is answered, what stays of epochs
// that are over and of members that are dead.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <future>
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

constexpr auto kGenerous = 60s;

wire::Standing standing(uint64_t epoch, wire::EnterCause cause = wire::EnterCause::kFirst) {
  wire::Standing standing;
  standing.member = 99;  // the server knows better
  standing.epoch = epoch;
  standing.cause = cause;
  standing.pid = 4711;
  return standing;
}

wire::NewEpoch epoch_of(uint64_t number, int32_t rank, int32_t size) {
  wire::NewEpoch epoch;
  epoch.epoch = number;
  epoch.rank = rank;
  epoch.size = size;
  return epoch;
}

// Waits for so many entries.
std::vector<Entry> entries_of(StoreServer& server, size_t count) {
  std::vector<Entry> all;
  while (all.size() < count) {
    if (!poll_until(server.entries_fd(), POLLIN, deadline_in(kGenerous)).ok()) break;
    for (Entry& entry : server.take_entries()) all.push_back(std::move(entry));
  }
  return all;
}

std::future<Result<wire::NewEpoch>> enters(StoreClient& client, const wire::Standing& standing) {
  return std::async(std::launch::async,
                    [&client, standing] { return client.enter(standing, deadline_in(kGenerous)); });
}

}  // namespace

TEST_CASE("who enters waits for its answer, while others go on", "[store]") {
  SocketWorld world(2);
  auto first = enters(world.client(1), standing(0));
  const auto entries = entries_of(world.server(), 1);
  REQUIRE(entries.size() == 1);
  CHECK(entries[0].member == 1);
  CHECK(entries[0].standing.member == 1);
  CHECK(entries[0].standing.pid == 4711);
  CHECK(world.client(0).set("e1/place/0", "here").ok());
  // Its own connection, too.
  CHECK(world.client(1).get("e1/place/0", kGenerous).value() == "here");
  world.server().answer(0, epoch_of(9, 0, 2));  // who has not asked
  world.server().answer(1, epoch_of(3, 1, 2));
  auto answer = first.get();
  REQUIRE(answer.ok());
  CHECK(*answer == epoch_of(3, 1, 2));
}

TEST_CASE("who asks again is answered once more, or counts once", "[store]") {
  auto server = std::move(StoreServer::start()).value();
  auto [ours, theirs] = stream_pair();
  REQUIRE(server->add(std::move(theirs), 7).ok());
  const auto client = [&ours = ours] {
    return std::make_unique<StoreClient>(UniqueFd(fcntl(ours.get(), F_DUPFD_CLOEXEC, 0)));
  };
  CHECK(client()->enter(standing(0), deadline_in(0s)).status().code() == Code::kDeadlineExceeded);
  REQUIRE(entries_of(*server, 1).size() == 1);
  CHECK(client()->enter(standing(0), deadline_in(0s)).status().code() == Code::kDeadlineExceeded);
  CHECK(client()->report("failure", "so that the server has read both").ok());
  CHECK(server->take_entries().empty());  // it is the same wish
  server->answer(7, epoch_of(1, 0, 1));   // while nobody reads
  CHECK(client()->enter(standing(0), deadline_in(kGenerous)).value() == epoch_of(1, 0, 1));
  CHECK(server->take_entries().empty());

  // Another wish of the same process is a new one.
  auto next = client();
  auto waits = enters(*next, standing(1, wire::EnterCause::kLeft));
  REQUIRE(entries_of(*server, 1).size() == 1);
  server->answer(7, epoch_of(2, 0, 1));
  CHECK(waits.get().value() == epoch_of(2, 0, 1));
  // And what the answer was to is over once the client goes on.
  CHECK(next->set("e2/place/0", "here").ok());
  auto later = enters(*next, standing(1, wire::EnterCause::kLeft));
  CHECK(entries_of(*server, 1).size() == 1);
  server->answer(7, epoch_of(3, 0, 1));
  CHECK(later.get().value().epoch == 3);
}

TEST_CASE("who asks again between the look at its wish and the answer counts once", "[store]") {
  SocketWorld world(1);
  auto first = enters(world.client(0), standing(0));
  REQUIRE(entries_of(world.server(), 1).size() == 1);
  auto second = enters(world.client(0), standing(0));
  CHECK(first.get().status().code() == Code::kAborted);
  world.server().answer(0, epoch_of(1, 0, 1));
  CHECK(second.get().value().epoch == 1);
  CHECK(world.server().take_entries().empty());
}

TEST_CASE("another thread's key does not drop a wish to enter", "[store]") {
  SocketWorld world(1);
  auto waits = enters(world.client(0), standing(0));
  REQUIRE(entries_of(world.server(), 1).size() == 1);
  CHECK(world.client(0).set("e1/place/0", "here").ok());
  world.server().answer(0, epoch_of(3, 0, 1));
  CHECK(waits.get().value().epoch == 3);
}

TEST_CASE("a signal ends the wait to enter, which can be asked again", "[store]") {
  SocketWorld world(1);
  struct sigaction nothing = {}, before = {};
  nothing.sa_handler = [](int) {};  // and no SA_RESTART
  sigaction(SIGUSR1, &nothing, &before);
  std::atomic<bool> over{false}, unwanted{false};
  Status interrupted;
  std::thread member([&] {
    interrupted = world.client(0).enter(standing(0), deadline_in(kGenerous), &unwanted).status();
    over.store(true);
  });
  REQUIRE(entries_of(world.server(), 1).size() == 1);
  // It may not sleep yet: until it has seen one.
  while (!over.load()) {
    pthread_kill(member.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  member.join();
  sigaction(SIGUSR1, &before, nullptr);
  CHECK(interrupted.code() == Code::kAborted);
  world.server().answer(0, epoch_of(1, 0, 1));
  CHECK(world.client(0).enter(standing(0), deadline_in(kGenerous)).value() == epoch_of(1, 0, 1));
}

TEST_CASE("a long wait to enter comes back for signals that it has not seen", "[store]") {
  SocketWorld world(1);
  std::atomic<bool> unwanted{false};
  const auto ask = [&] {
    return world.client(0).enter(standing(0), deadline_in(kGenerous), &unwanted);
  };
  CHECK(ask().status().code() == Code::kAborted);
  CHECK(ask().status().code() == Code::kAborted);
  CHECK(world.server().take_entries().size() == 1);
  world.server().answer(0, epoch_of(1, 0, 1));
  CHECK(ask().value() == epoch_of(1, 0, 1));
}

TEST_CASE("another thread ends the wait to enter", "[store]") {
  SocketWorld world(1);
  std::atomic<bool> unwanted{false};
  auto waits = std::async(std::launch::async, [&] {
    Status ended;
    do {
      ended = world.client(0).enter(standing(0), deadline_in(kGenerous), &unwanted).status();
    } while (ended.code() == Code::kAborted);
    return ended;
  });
  REQUIRE(entries_of(world.server(), 1).size() == 1);
  unwanted.store(true);
  CHECK(waits.get().code() == Code::kFailedPrecondition);
  // The stream serves the next one.
  CHECK(world.client(0).set("e1/place/0", "here").ok());
}

TEST_CASE("a wish to enter that is none is refused, and the connection stays", "[store]") {
  auto server = std::move(StoreServer::start()).value();
  auto [ours, theirs] = stream_pair();
  REQUIRE(server->add(std::move(theirs), 0).ok());
  wire::StoreRequest request;
  request.id = 5;
  request.op = wire::StoreOp::kEnter;
  request.value = "\xff";
  const std::string frame = framed(wire::encode(request));
  REQUIRE(send(ours.get(), frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size()));
  StoreClient client(std::move(ours));
  CHECK(client.set("k", "v").ok());
  CHECK(server->take_entries().empty());
}

TEST_CASE("in an epoch ranks are its members, and a death is told by rank", "[store]") {
  SocketWorld world(4);  // members 0 to 3
  StoreServer& server = world.server();
  server.begin_epoch(1, {0, 1, 2});
  server.mark_dead(1, "rank 1 was lost");
  const Status lost = world.client(0).get("e1/place/1", kGenerous).status();
  CHECK(lost.code() == Code::kUnavailable);
  CHECK(lost.facts().rank == 1);
  // Member 2 is rank 0 now, member 3 rank 1; the dead one is nobody's rank.
  server.begin_epoch(2, {2, 3});
  CHECK(world.client(3).set("e2/place/1", "member 3").ok());
  CHECK(world.client(2).get("e2/place/1", kGenerous).value() == "member 3");
  // One that is in no epoch is missed by nobody.
  server.mark_dead(0, "it was removed");
  CHECK(world.client(2).get("e2/place/1", kGenerous).value() == "member 3");
  server.mark_dead(3, "member 3 was lost");
  const Status next = world.client(2).get("e2/place/1", kGenerous).status();
  CHECK(next.message() == "member 3 was lost");
  CHECK(next.facts().rank == 1);
  // A dead member that is in the next epoch all the same stays dead there, whatever its rank.
  server.begin_epoch(3, {3, 2});
  CHECK(world.client(2).get("e3/place/0", kGenerous).status().facts().rank == 0);
}

TEST_CASE("keys of epochs that all have left are dropped, and their room is free again",
          "[store]") {
  SocketWorld world(2);
  StoreServer& server = world.server();
  const std::string much(kMaxValueBytes, 'x');
  const auto fill = [&](uint64_t epoch) {
    Status last;
    size_t stored = 0;
    for (; last.ok() && stored < 70; ++stored)
      last = world.client(0).set("e" + std::to_string(epoch) + "/more/" + std::to_string(stored),
                                 much);
    CHECK(last.code() == Code::kResourceExhausted);
    return stored - 1;
  };
  server.begin_epoch(1, {0, 1});
  CHECK(world.client(1).put("users", "stays").ok());
  CHECK(world.client(1).set("e1/place/1", "here").ok());
  CHECK(fill(1) == 63);
  server.begin_epoch(2, {0, 1});
  // Whoever was second to leave epoch 1 may still read in it.
  CHECK(world.client(0).get("e1/place/1", kGenerous).value() == "here");
  server.begin_epoch(3, {0, 1});
  CHECK(world.client(0).get("e1/place/1", 0s).status().code() == Code::kDeadlineExceeded);
  CHECK(world.client(0).get_user("users", kGenerous).value() == "stays");
  CHECK(fill(3) == 63);
}

}  // namespace rueda::rendezvous::testing

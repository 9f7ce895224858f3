// Init that fails says alike on all ranks between whom the answer is missing.
#include "runtime/membership/first_verdict.h"

#include <catch2/catch.hpp>
#include <cerrno>

#include <future>

#include "proto/store_codec.h"
#include "runtime/rendezvous/memory_store.h"
#include "tests/support/thread_world.h"

namespace rueda::membership {
namespace {

using rendezvous::JobKey;
using rendezvous::MemoryStore;
using testing::must;

constexpr std::chrono::seconds kLong{300};

Deadline in(std::chrono::seconds time) { return std::chrono::steady_clock::now() + time; }

Status join(Rank rank, double start_timeout, MemoryStore* store, const JobKey& key) {
  JoinOptions options;
  options.place.rank = rank;
  options.place.size = 3;
  options.place.job_id = "job";
  options.config.host_id = rank == 1 ? "far" : "here";
  options.config.start_timeout_seconds = start_timeout;
  options.config.dead_seconds = 600;
  return join(options, store, &key).status();
}

// Rank 1 connects to all others, then says nothing more, as if the cable had been pulled.
MeshSockets fall_silent(MemoryStore* store, const JobKey& key) {
  wire::PlaceInfo place;
  const std::string example = must(store->get("e1/place/0", kLong));
  must(wire::decode(example, &place));
  place.rank = 1;
  place.host_id = "far";
  place.host_name = "far";
  const Listener unix_listener = must(listen_unix(8));
  const Listener listener = must(listen_tcp("127.0.0.1", 8));
  must(store->set("e1/tcp/1", listener.address));
  must(store->set("e1/place/1", wire::encode(place)));
  MeshTask task;
  task.rank = 1;
  task.epoch = 1;
  task.job_id = "job";
  task.unix_listener = &unix_listener;
  task.tcp_listener = &listener;
  task.deadline = in(kLong);
  task.alive = [](Rank) { return Status(); };
  for (Rank rank = 0; rank < 3; ++rank) {
    task.names.push_back("rank " + std::to_string(rank));
    task.peers.push_back(
        {false, rank == 1 ? "" : must(store->get("e1/tcp/" + std::to_string(rank), kLong))});
  }
  MeshSockets sockets;
  must(connect_mesh(task, key, &sockets));
  return sockets;
}

TEST_CASE(
    "a rank that waits for its neighbour, which waits for a silent host, names the host's rank",
    "[first_verdict]") {
  MemoryStore store;
  const JobKey key = must(JobKey::make_random());
  auto zero = std::async(std::launch::async, [&] { return join(0, 300, &store, key); });
  auto two = std::async(std::launch::async, [&] { return join(2, 6, &store, key); });
  const MeshSockets held = fall_silent(&store, key);
  const Status second = two.get();  // its time is over first
  const auto told = std::chrono::steady_clock::now();
  const Status first = zero.get();
  CHECK(std::chrono::steady_clock::now() - told <
        std::chrono::seconds(60));  // not its own deadline
  CHECK(second.code() == Code::kDeadlineExceeded);
  CHECK(first.code() == Code::kUnavailable);
  for (const Status& status : {first, second}) {
    INFO(status.message());
    CHECK(status.message().starts_with("rank 0 (pid "));
    CHECK_THAT(status.message(),
               Catch::Contains("has no answer from rank 1 (pid ") && Catch::Contains(" on far)"));
  }
  CHECK_THAT(first.message(), Catch::Contains("(as rank 2 (pid "));
}

TEST_CASE("the first reason counts, and one's own faults are nobody's verdict", "[first_verdict]") {
  MemoryStore store;
  FirstVerdict zero(&store, "e1/", 0), one(&store, "e1/", 1), later(&store, "e2/", 1);
  CHECK(zero.look(1).ok());
  CHECK(zero.settle(invalid_argument("mine")).message() == "mine");
  CHECK(zero.settle({Code::kUnauthenticated, "refused"}).message() == "refused");
  CHECK(FirstVerdict::said(&store, "e1/").ok());
  CHECK(zero.settle(unavailable("rank 2: no").with_rank(2)).message() == "rank 2: no");
  const std::string first = "rank 2: no (as rank 0 says)";
  CHECK(one.look(0).message() == first);
  CHECK(one.look(0).facts().rank == 2);  // all know who was lost
  CHECK(one.settle(deadline_exceeded("rank 0: late")).message() == first);
  CHECK(one.settle({Code::kUnauthenticated, "rank 0: closed half-way"}).message() == first);
  CHECK(one.settle(errno_status("cannot pass it on", EPIPE)).message() == first);
  CHECK(one.settle({Code::kResourceExhausted, "no descriptors"}).message() == "no descriptors");
  CHECK(later.look(0).ok());  // another epoch
}

TEST_CASE("two ranks that wait for each other, and ranks that wait in a circle, end the search",
          "[first_verdict]") {
  MemoryStore store;
  std::vector<FirstVerdict> ranks;
  for (Rank rank = 0; rank < 4; ++rank) ranks.emplace_back(&store, "e1/", rank);
  CHECK(ranks[3].look(0).ok());
  CHECK(ranks[0].look(3).ok());  // an earlier wait; the last one counts
  CHECK(ranks[0].look(1).ok());
  CHECK(ranks[1].look(2).ok());
  CHECK(ranks[2].look(0).ok());
  CHECK(FirstVerdict::said(&store, "e1/").ok());
  const std::string text = ranks[3].settle(deadline_exceeded("no answer")).message();
  CHECK(text == "rank 2 has no answer from rank 0 (RUEDA_START_TIMEOUT); rank 3 waited for rank 0");
  CHECK(FirstVerdict::said(&store, "e1/").facts().rank == -1);  // late is not lost
  MemoryStore other;
  FirstVerdict a(&other, "e1/", 0), b(&other, "e1/", 1), c(&other, "e1/", 2);
  CHECK(a.look(1).ok());
  CHECK(b.look(0).ok());
  CHECK(c.look(0).ok());
  CHECK(c.settle(deadline_exceeded("")).message() ==
        "rank 0 has no answer from rank 1 (RUEDA_START_TIMEOUT); rank 2 waited for rank 0");
}

}  // namespace
}  // namespace rueda::membership

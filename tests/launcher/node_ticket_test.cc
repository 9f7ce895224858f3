// How a node comes to the job's ticket, and who does not.
#include "launcher/hosts/node_ticket.h"

#include <catch2/catch.hpp>

using namespace rueda::launcher;
using rueda::Code;
using rueda::rendezvous::JobKey;

namespace {

NodeDoor door_of(int rank, int port, const JobKey& key, int ranks_per_node = 2) {
  TorchNodes nodes;
  nodes.nodes = 3;
  nodes.rank = rank;
  nodes.ranks_per_node = ranks_per_node;
  nodes.address = "127.0.0.1";
  nodes.port = port;
  return {nodes, key};
}

rueda::Result<std::string> fetch(const NodeDoor& door, double seconds = 60) {
  return fetch_ticket(
      door, std::chrono::duration<double>(seconds), [](const std::string&) {},
      [] { return false; });
}

}  // namespace

TEST_CASE("a sealed ticket opens with its key alone, and undamaged", "[node_ticket]") {
  const JobKey key = JobKey::make_random().value(), other = JobKey::make_random().value();
  const std::string sealed = seal("the ticket", key);
  CHECK(unseal(sealed, key).value() == "the ticket");
  CHECK(sealed.find("ticket") == std::string::npos);
  CHECK(seal("the ticket", key) != sealed);
  CHECK(unseal(sealed, other).status().code() == Code::kUnauthenticated);
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::string damaged = sealed;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    CHECK_FALSE(unseal(damaged, key).ok());
    CHECK_FALSE(unseal(sealed.substr(0, i), key).ok());
  }
}

TEST_CASE("nodes with the key are given the ticket, and nobody else", "[node_ticket]") {
  const JobKey key = JobKey::make_random().value(), other = JobKey::make_random().value();
  const auto handing = hand_out_ticket(door_of(0, 0, key), "the ticket");
  REQUIRE(handing.ok());
  const int port = handing.value().port();
  CHECK(fetch(door_of(1, port, key)).value() == "the ticket");
  CHECK(fetch(door_of(2, port, key)).value() == "the ticket");
  CHECK(fetch(door_of(1, port, other)).status().code() == Code::kUnauthenticated);
  // It is told of another number of ranks: the job could not be one.
  const auto differs = fetch(door_of(1, port, key, 4));
  CHECK(differs.status().code() == Code::kUnauthenticated);
  CHECK_THAT(differs.status().message(), Catch::Contains("here 3 nodes with 4 each"));
}

TEST_CASE("a node that nobody answers waits until its limit, or until it is stopped",
          "[node_ticket]") {
  const JobKey key = JobKey::make_random().value();
  int port = 0;
  {
    const auto closed = hand_out_ticket(door_of(0, 0, key), "");
    REQUIRE(closed.ok());
    port = closed.value().port();
  }
  const auto late = fetch(door_of(1, port, key), 0);
  CHECK(late.status().code() == Code::kDeadlineExceeded);
  CHECK_THAT(late.status().message(), Catch::Contains("gave up waiting for node 0 (127.0.0.1:"));
  const auto stopped = fetch_ticket(
      door_of(1, port, key), std::chrono::hours(1), [](const std::string&) {}, [] { return true; });
  CHECK(stopped.status().code() == Code::kCancelled);
}

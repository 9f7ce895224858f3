// The handshake lets in who holds the job's key, and nobody else, whatever he sends.
#include <catch2/catch.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <string>

#include "runtime/rendezvous/handshake.h"
#include "runtime/rendezvous/poll_until.h"
#include "tests/rendezvous/store_worlds.h"

namespace rueda::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

JobKey key_of(uint8_t byte) {
  std::array<uint8_t, JobKey::kBytes> bytes;
  bytes.fill(byte);
  return JobKey::from_bytes(bytes);
}

// Rank 0 of 4 connects to rank 1.
HandshakeTerms connector_terms() { return {HandshakeRole::kConnecting, 0, 4, Rank{1}, 7, "job"}; }
HandshakeTerms acceptor_terms() {
  return {HandshakeRole::kAccepting, 1, 4, std::nullopt, 7, "job"};
}

std::string take(Handshake& from) {
  const ByteView bytes = from.bytes_to_send();
  std::string out(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  from.sent(bytes.size());
  return out;
}

size_t give(Handshake& to, const std::string& bytes) {
  return to.feed(std::as_bytes(std::span(bytes)));
}

// Carries bytes until neither side has more to say.
void run(Handshake& a, Handshake& b) {
  for (;;) {
    const std::string from_a = take(a);
    const std::string from_b = take(b);
    if (from_a.empty() && from_b.empty()) return;
    give(b, from_a);
    give(a, from_b);
  }
}

void check_refused(const Handshake& handshake, const std::string& why) {
  CHECK_FALSE(handshake.done());
  CHECK(handshake.status().code() == Code::kUnauthenticated);
  CHECK_THAT(handshake.status().message(), Contains(why));
  CHECK(handshake.bytes_to_send().empty());
  CHECK(handshake.bytes_wanted() == 0);
}

}  // namespace

TEST_CASE("two ranks with one key know each other's rank at the end", "[handshake]") {
  Handshake connector(connector_terms(), key_of(1));
  Handshake acceptor(acceptor_terms(), key_of(1));
  run(connector, acceptor);
  CHECK(connector.done());
  CHECK(acceptor.done());
  CHECK(connector.peer_rank() == 1);
  CHECK(acceptor.peer_rank() == 0);
}

TEST_CASE("bytes may come one by one, and those after the handshake are left alone",
          "[handshake]") {
  Handshake connector(connector_terms(), key_of(1));
  Handshake acceptor(acceptor_terms(), key_of(1));
  const std::string hello = take(acceptor);
  for (const char c : hello) CHECK(give(connector, std::string(1, c)) == 1);
  const std::string from_connector = take(connector);
  REQUIRE(from_connector.size() == kHandshakeBytes);
  CHECK(give(acceptor, from_connector + "next protocol") == kHandshakeBytes);
  CHECK(give(connector, take(acceptor) + "next protocol") == kProofBytes);
  CHECK(acceptor.done());
  CHECK(connector.done());
}

TEST_CASE("another key is refused, and the accepting side proves nothing to it", "[handshake]") {
  Handshake connector(connector_terms(), key_of(2));
  Handshake acceptor(acceptor_terms(), key_of(1));
  run(connector, acceptor);
  check_refused(acceptor, "does not hold this job's key");
  CHECK_FALSE(connector.done());
  CHECK(connector.status().ok());  // it waits for a proof until the stream is closed
  connector.feed_end();
  check_refused(connector, "closed the connection half-way");
}

TEST_CASE("an accepting side without the key is refused too", "[handshake]") {
  Handshake connector(connector_terms(), key_of(1));
  Handshake acceptor(acceptor_terms(), key_of(2));
  give(connector, take(acceptor));
  take(connector);
  give(connector, std::string(kProofBytes, '\0'));
  check_refused(connector, "does not hold this job's key");
}

TEST_CASE("a recorded exchange opens nothing", "[handshake]") {
  Handshake connector(connector_terms(), key_of(1));
  Handshake acceptor(acceptor_terms(), key_of(1));
  const std::string acceptor_hello = take(acceptor);
  give(connector, acceptor_hello);
  const std::string said_by_connector = take(connector);
  give(acceptor, said_by_connector);
  const std::string said_by_acceptor = acceptor_hello + take(acceptor);

  Handshake next_acceptor(acceptor_terms(), key_of(1));
  give(next_acceptor, said_by_connector);
  check_refused(next_acceptor, "does not hold this job's key");
  Handshake next_connector(connector_terms(), key_of(1));
  give(next_connector, said_by_acceptor);
  check_refused(next_connector, "does not hold this job's key");
}

TEST_CASE("our own bytes sent back are refused", "[handshake]") {
  Handshake connector(connector_terms(), key_of(1));
  const std::string hello = take(connector);
  give(connector, hello);
  check_refused(connector, "accepting part");

  // With the role turned round, and then with the rank changed as well.
  constexpr size_t kRoleAt = 8;
  constexpr size_t kRankAt = 12;
  Handshake second(connector_terms(), key_of(1));
  std::string turned = take(second);
  turned[kRoleAt] = static_cast<char>(HandshakeRole::kAccepting);
  turned[kRankAt] = 1;
  give(second, turned);
  check_refused(second, "our own bytes were sent back");

  // Two connections of the victim played against each other: the proof names the prover's role.
  Handshake a(connector_terms(), key_of(1));
  Handshake b(acceptor_terms(), key_of(1));
  give(a, take(b));
  const std::string all = take(a);
  give(a, all.substr(kHelloBytes));
  check_refused(a, "does not hold this job's key");
}

TEST_CASE("another epoch, version, magic, size or rank is refused by name", "[handshake]") {
  Handshake acceptor(acceptor_terms(), key_of(1));
  HandshakeTerms terms = connector_terms();
  SECTION("epoch") {
    terms.epoch = 6;
    Handshake connector(terms, key_of(1));
    run(connector, acceptor);
    check_refused(acceptor, "rank 0 is in epoch 6, this rank in epoch 7");
    check_refused(connector, "rank 1 is in epoch 7, this rank in epoch 6");
  }
  SECTION("job id") {
    terms.job_id = "job2";
    Handshake connector(terms, key_of(1));
    run(connector, acceptor);
    check_refused(acceptor, "does not hold this job's key");
  }
  SECTION("a rank outside the world") {
    terms.my_rank = GENERATE(-1, 4, 1);  // 1 is the acceptor itself
    Handshake connector(terms, key_of(1));
    run(connector, acceptor);
    check_refused(acceptor, "claims to be rank " + std::to_string(terms.my_rank));
  }
  SECTION("not the rank that was asked for") {
    terms.peer = 2;
    Handshake connector(terms, key_of(1));
    run(connector, acceptor);
    check_refused(connector, "rank 2 was expected, but rank 1 answers");
  }
  SECTION("version") {
    Handshake connector(terms, key_of(1));
    std::string hello = take(connector);
    hello[4] = 2;
    give(acceptor, hello);
    check_refused(acceptor, "speaks version 2");
  }
  SECTION("magic") {
    give(acceptor, "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: someone/1.0\r\n\r\n");
    check_refused(acceptor, "not a rank of rueda");
  }
}

TEST_CASE("no bit of hello or proof can be changed on the way", "[handshake]") {
  const Rank liar = 3;
  for (size_t bit = 0; bit < kHandshakeBytes * 8; ++bit) {
    Handshake connector(connector_terms(), key_of(1));
    Handshake acceptor(acceptor_terms(), key_of(1));
    give(connector, take(acceptor));
    std::string bytes = take(connector);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    give(acceptor, bytes);
    INFO("bit " << bit);
    CHECK(acceptor.status().code() == Code::kUnauthenticated);
  }
  // Rank 0's proof does not serve who says he is rank 3.
  Handshake connector(connector_terms(), key_of(1));
  Handshake acceptor(acceptor_terms(), key_of(1));
  give(connector, take(acceptor));
  std::string bytes = take(connector);
  bytes[12] = static_cast<char>(liar);
  give(acceptor, bytes);
  check_refused(acceptor, "(claimed) rank 3");
}

TEST_CASE("a stream that ends early is refused at every byte", "[handshake]") {
  for (size_t size = 0; size < kHandshakeBytes; ++size) {
    Handshake connector(connector_terms(), key_of(1));
    Handshake acceptor(acceptor_terms(), key_of(1));
    give(connector, take(acceptor));
    give(acceptor, take(connector).substr(0, size));
    CHECK_FALSE(acceptor.done());
    acceptor.feed_end();
    CHECK(acceptor.status().code() == (size == 0 ? Code::kUnavailable : Code::kUnauthenticated));
    CHECK(acceptor.bytes_to_send().empty());
  }
}

TEST_CASE("shake_hands introduces two threads over a socket and reads no byte more",
          "[handshake]") {
  auto [a, b] = stream_pair();
  auto accepting = std::async(std::launch::async, [fd = b.get()] {
    const auto rank = shake_hands(fd, acceptor_terms(), key_of(1), deadline_in(60s));
    send(fd, "next", 4, MSG_NOSIGNAL);
    return rank;
  });
  const auto peer = shake_hands(a.get(), connector_terms(), key_of(1), deadline_in(60s));
  REQUIRE(peer.status().to_string() == "ok");
  CHECK(peer.value() == 1);
  CHECK(accepting.get().value() == 0);
  char next[5] = {};
  REQUIRE(recv(a.get(), next, 4, MSG_WAITALL) == 4);
  CHECK(std::string(next) == "next");
}

TEST_CASE("shake_hands refuses a stranger, an early end and a silent peer", "[handshake]") {
  auto [a, b] = stream_pair();
  SECTION("another key: both sides end") {
    auto accepting = std::async(std::launch::async, [fd = std::move(b)]() mutable {
      const auto rank = shake_hands(fd.get(), acceptor_terms(), key_of(2), deadline_in(60s));
      fd.reset();
      return rank;
    });
    const auto peer = shake_hands(a.get(), connector_terms(), key_of(1), deadline_in(60s));
    CHECK(peer.status().code() == Code::kUnauthenticated);
    CHECK(accepting.get().status().code() == Code::kUnauthenticated);
  }
  SECTION("cut at every byte") {
    for (size_t size = 0; size < kHandshakeBytes; ++size) {
      auto [ours, theirs] = stream_pair();
      // A connector's bytes up to `size`, made for a hello that nobody said: the proof is wrong.
      Handshake connector(connector_terms(), key_of(1));
      std::string bytes = take(connector);
      bytes.resize(kHandshakeBytes, 'p');
      REQUIRE(send(theirs.get(), bytes.data(), size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
      theirs.reset();
      const auto rank = shake_hands(ours.get(), acceptor_terms(), key_of(1), deadline_in(60s));
      INFO("size " << size << ": " << rank.status().to_string());
      CHECK(rank.status().code() == (size == 0 ? Code::kUnavailable : Code::kUnauthenticated));
    }
  }
  SECTION("silence") {
    const auto rank = shake_hands(a.get(), acceptor_terms(), key_of(1), deadline_in(10ms));
    CHECK(rank.status().code() == Code::kDeadlineExceeded);
  }
}

}  // namespace rueda::rendezvous::testing

// One stream over several connections: every byte once and in order, the end when it is its turn.
#include <catch2/catch.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <random>

#include "collectives/transport/striped_connection.h"

namespace rueda::transport {
namespace {

struct Ends {
  host::EventLoop loop = std::move(host::EventLoop::create().value());
  std::unique_ptr<StripedConnection> a, b;
  std::vector<int> sockets;  // of a

  explicit Ends(size_t streams) {
    std::vector<std::unique_ptr<TcpConnection>> of_a, of_b;
    for (size_t i = 0; i < streams; ++i) {
      int pair[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
      sockets.push_back(pair[0]);
      of_a.push_back(TcpConnection::create(UniqueFd(pair[0]), &loop).value());
      of_b.push_back(TcpConnection::create(UniqueFd(pair[1]), &loop).value());
    }
    a = std::make_unique<StripedConnection>(std::move(of_a));
    b = std::make_unique<StripedConnection>(std::move(of_b));
  }
};

std::vector<std::byte> numbers(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i * 31 + i / 7919) & 0xff);
  return bytes;
}

TEST_CASE("every byte arrives once and in order, however it is written and read", "[striped]") {
  for (const size_t streams : {size_t{1}, size_t{2}, size_t{3}, size_t{5}}) {
    Ends ends(streams);
    std::mt19937 random(static_cast<unsigned>(streams));
    const auto sent = numbers(5 * streams * StripedConnection::kStripeBytes + 12345);
    std::vector<std::byte> got(sent.size());
    size_t out = 0, in = 0;
    while (in < got.size()) {
      // Two pieces, as a header and a body are.
      const size_t first = std::min<size_t>(random() % 100, sent.size() - out);
      const size_t second = std::min<size_t>(random() % 400'000, sent.size() - out - first);
      const ByteView all(sent);
      const ByteView pieces[] = {all.subspan(out, first), all.subspan(out + first, second)};
      const auto written = ends.a->write(pieces);
      REQUIRE(written.ok());
      out += written.value();
      ends.a->set_blocked(written.value() < first + second);
      // A level-triggered sleeper must not be woken by what it will not read.
      ends.loop.wait(std::chrono::nanoseconds(0));
      for (int i = 0; i < 3; ++i) {
        const size_t room = std::min<size_t>(1 + random() % 300'000, got.size() - in);
        const auto read = ends.b->read(ByteSpan(got).subspan(in, room));
        REQUIRE(read.ok());
        in += read.value();
        if (in == got.size()) break;
      }
    }
    CHECK(got == sent);
    CHECK_FALSE(ends.loop.wait(std::chrono::nanoseconds(0)));  // nothing is left that would wake
  }
}

TEST_CASE("what comes early on a connection whose turn it is not wakes nobody", "[striped]") {
  Ends ends(3);
  const std::byte early[100] = {};
  REQUIRE(send(ends.sockets[1], early, sizeof(early), 0) == sizeof(early));
  CHECK_FALSE(ends.loop.wait(std::chrono::nanoseconds(0)));
  REQUIRE(send(ends.sockets[0], early, sizeof(early), 0) == sizeof(early));
  CHECK(ends.loop.wait(std::chrono::nanoseconds(0)));
}

TEST_CASE("what was sent before the end is still read, then the end is told", "[striped]") {
  Ends ends(2);
  const auto sent = numbers(StripedConnection::kStripeBytes + 500);
  std::vector<std::byte> got(sent.size());
  size_t out = 0, in = 0;
  while (out < sent.size()) {
    const ByteView rest[] = {ByteView(sent).subspan(out)};
    out += ends.a->write(rest).value();
    if (out < sent.size()) in += ends.b->read(ByteSpan(got).subspan(in)).value();
    ends.loop.wait(std::chrono::nanoseconds(0));
  }
  ends.a.reset();
  ends.loop.wait(std::chrono::nanoseconds(0));
  while (in < got.size()) {
    const auto read = ends.b->read(ByteSpan(got).subspan(in));
    REQUIRE(read.ok());
    in += read.value();
  }
  CHECK(got == sent);
  const auto end = ends.b->read(got);
  REQUIRE_FALSE(end.ok());
  CHECK(end.status().code() == Code::kUnavailable);
}

}  // namespace
}  // namespace rueda::transport

// Connections of the kernel's: refused where they cannot be watched, and what closing them takes
// back.
#include "collectives/transport/tcp_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>

#include "collectives/transport/ring_connection.h"

namespace rueda::transport {
namespace {

// epoll takes no files.
UniqueFd unwatchable() { return UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)); }

TEST_CASE("a socket that cannot be watched is an error of whoever makes the connection",
          "[connection]") {
  host::EventLoop loop = std::move(host::EventLoop::create().value());
  const auto connection = TcpConnection::create(unwatchable(), &loop);
  REQUIRE_FALSE(connection.ok());
  CHECK_THAT(connection.status().message(), Catch::Contains("cannot watch a socket"));
  CHECK(loop.empty());
}

TEST_CASE("a ring whose peer's death would not be seen is refused", "[connection]") {
  host::EventLoop loop = std::move(host::EventLoop::create().value());
  alignas(128) std::byte there[host::ByteRing::bytes_for(4096)] = {};
  alignas(128) std::byte back[host::ByteRing::bytes_for(4096)] = {};
  const auto connection =
      RingConnection::create("shm", host::ByteRing(there, 4096), host::ByteRing(back, 4096), {},
                             unwatchable(), &loop, nullptr);
  REQUIRE_FALSE(connection.ok());
  CHECK_THAT(connection.status().message(), Catch::Contains("cannot watch a socket"));
  CHECK(loop.empty());
}

// Two ends of a connection over the loopback, with small buffers.
std::pair<UniqueFd, UniqueFd> loopback() {
  const int small = 4096;
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(listener.get(), name, length) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  REQUIRE(getsockname(listener.get(), name, &length) == 0);
  UniqueFd a(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(a.get(), name, length) == 0);
  UniqueFd b(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(b.get() >= 0);
  return {std::move(a), std::move(b)};
}

TEST_CASE("what has arrived is read although the sender closes with bytes that it has not read",
          "[connection]") {
  host::EventLoop loop = std::move(host::EventLoop::create().value());
  auto [a_fd, b_fd] = loopback();
  auto a = TcpConnection::create(std::move(a_fd), &loop).value();
  auto b = TcpConnection::create(std::move(b_fd), &loop).value();
  const std::vector<std::byte> never_read(100, std::byte{1});
  const ByteView unread[] = {never_read};
  REQUIRE(b->write(unread).value() == never_read.size());
  // More than b's socket takes: the rest waits in a's.
  const std::vector<std::byte> sent(200 << 10, std::byte{2});
  const ByteView all[] = {sent};
  size_t left = sent.size() - a->write(all).value();
  std::vector<std::byte> into(8 << 10);
  size_t got = 0;
  const auto read_some = [&] {
    loop.wait(std::chrono::milliseconds(1));
    const auto count = b->read(into);
    if (count.ok()) got += count.value();
    return count.ok();
  };
  CHECK_FALSE(a->has_arrived());
  while (left > 0) {
    const ByteView rest[] = {ByteView(sent).last(left)};
    left -= a->write(rest).value();
    REQUIRE(read_some());
  }
  while (!a->has_arrived()) REQUIRE(read_some());
  a.reset();
  while (read_some()) {
  }
  CHECK(got == sent.size());
}

}  // namespace
}  // namespace rueda::transport

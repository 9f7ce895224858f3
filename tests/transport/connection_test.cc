// Connections that cannot be watched are refused where they are made.
#include "collectives/transport/tcp_connection.h"

#include <fcntl.h>

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

}  // namespace
}  // namespace rueda::transport

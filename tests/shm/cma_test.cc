#include "collectives/shm/cma.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

namespace rueda::shm {
namespace {

uint64_t word = 1;

TEST_CASE("memory of another process is read as it is there; a process that is gone is an error",
          "[read_peer]") {
  int ready[2];
  int end[2];
  REQUIRE((pipe(ready) == 0 && pipe(end) == 0));
  const pid_t child = fork();
  char byte = 0;
  if (child == 0) {
    close(end[1]);
    word = 4711;
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    // Until the parent closes its end, or is gone.
    _exit(read(end[0], &byte, 1) == 0 ? 0 : 1);
  }
  REQUIRE(read(ready[0], &byte, 1) == 1);
  uint64_t seen = 0;
  const auto address = reinterpret_cast<uintptr_t>(&word);
  const Status cma = read_peer(child, address, reinterpret_cast<std::byte*>(&seen), sizeof(seen));
  if (cma.ok()) {
    CHECK(seen == 4711);
    CHECK(word == 1);
    CHECK_FALSE(read_peer(child, 8, reinterpret_cast<std::byte*>(&seen), sizeof(seen)).ok());
  } else {
    WARN("not run: " << cma.to_string());
  }
  close(end[1]);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK_FALSE(read_peer(child, address, reinterpret_cast<std::byte*>(&seen), sizeof(seen)).ok());
  for (const int fd : {ready[0], ready[1], end[0]}) close(fd);
}

TEST_CASE("the probe takes only the arena's owner for the owner", "[read_peer]") {
  host::ArenaLayout layout;
  layout.chunk_bytes = 4096;
  layout.ring_bytes = 4096;
  auto arena = host::Arena::create(layout, 0, 1);
  REQUIRE(arena.ok());
  uint64_t cookie = 0;
  const bool allowed = read_peer(getpid(), arena.value()->header().cookie_address,
                                 reinterpret_cast<std::byte*>(&cookie), sizeof(cookie))
                           .ok();
  CHECK(probe_cma(*arena.value()) == allowed);
}

}  // namespace
}  // namespace rueda::shm

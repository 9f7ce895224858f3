#include "collectives/host/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <cstring>
#include <string_view>

namespace rueda::host {
namespace {

host::ArenaLayout small_layout() {
  host::ArenaLayout layout;
  layout.local_size = 3;
  layout.chunk_bytes = 4096;
  layout.buffers = 2;
  layout.ring_bytes = 4096;
  return layout;
}

std::shared_ptr<host::Arena> create() {
  auto arena = host::Arena::create(small_layout(), 1, 9);
  if (!arena.ok()) FAIL(arena.status().to_string());
  return arena.value();
}

Result<std::shared_ptr<host::Arena>> attach(int fd, const host::ArenaLayout& layout,
                                            Rank local_rank = 1, uint64_t epoch = 9) {
  return host::Arena::attach(UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)), layout, local_rank, epoch);
}

// Mappings of arenas in this process. No allocation: also runs in a forked child.
int mapped_arenas() {
  static char text[1 << 20];
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  size_t length = 0;
  for (ssize_t got = 1; got > 0 && length < sizeof(text) - 1;) {
    got = read(fd, text + length, sizeof(text) - 1 - length);
    if (got > 0) length += static_cast<size_t>(got);
  }
  close(fd);
  text[length] = 0;
  // A mapping may have several lines, of which the first begins at the file's beginning.
  int count = 0;
  for (const char* line = text; *line != 0;) {
    const char* const end = std::strchr(line, '\n');
    const std::string_view all(line, static_cast<size_t>(end - line));
    if (all.find("memfd:rueda-arena") != all.npos && all.find(" 00000000 ") != all.npos) ++count;
    line = end + 1;
  }
  return count;
}

TEST_CASE("an arena is sealed, zeroed and as large as its layout says", "[arena]") {
  const auto arena = create();
  const int seals = fcntl(arena->fd(), F_GET_SEALS);
  CHECK((seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) ==
        (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  CHECK(ftruncate(arena->fd(), 0) != 0);
  CHECK(lseek(arena->fd(), 0, SEEK_END) == static_cast<off_t>(small_layout().total_bytes()));
  for (size_t channel = 0; channel < host::kChannelGroups * small_layout().channels(); ++channel)
    CHECK(arena->channel(channel)->packed == 0);
  for (Rank peer = 0; peer < 3; ++peer) CHECK_FALSE(arena->ring_to(peer).readable());
}

TEST_CASE("the parts of an arena do not overlap and are aligned", "[arena]") {
  const auto arena = create();
  const host::ArenaLayout layout = small_layout();
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  CHECK(address(arena->sleep_word()) % 128 == 0);
  CHECK(address(arena->channel(0)) % 128 == 0);
  CHECK(address(arena->sleep_word()) + sizeof(host::SleepWord) <= address(arena->channel_word()));
  CHECK(address(arena->channel_word()) + sizeof(host::SleepWord) <= address(arena->channel(0)));
  CHECK(arena->channel(0) + 1 == arena->channel(1));
  CHECK(address(arena->channel(layout.channels() - 1) + 1) <= address(arena->buffer(0, 0)));
  const auto chunk = static_cast<ptrdiff_t>(layout.chunk_bytes);
  CHECK(arena->buffer(0, 1) - arena->buffer(0, 0) == chunk);
  CHECK(arena->buffer(1, 0) - arena->buffer(0, 1) == chunk);
  CHECK(layout.rings_offset() >=
        layout.staging_offset() + layout.channels() * layout.buffers * layout.chunk_bytes);
  CHECK(layout.groups_offset() >=
        layout.rings_offset() + 3 * host::ByteRing::bytes_for(layout.ring_bytes));
  for (size_t group = 1; group < host::kChannelGroups; ++group) {
    const size_t first = group * layout.channels();
    CHECK(address(arena->channel(first)) % 128 == 0);
    CHECK(arena->channel(first) + 1 == arena->channel(first + 1));
    CHECK(address(arena->channel(first + 1) + 1) <= address(arena->buffer(first, 0)));
    CHECK(arena->buffer(first + 1, 0) - arena->buffer(first, 1) == chunk);
    const auto end = address(arena->buffer(first + 1, 1)) + layout.chunk_bytes;
    CHECK(end <= (group + 1 < host::kChannelGroups
                      ? address(arena->channel(first + layout.channels()))
                      : address(arena->channel(0)) + layout.total_bytes()));
  }
}

TEST_CASE("channels of a process set have memory while they are reserved, zeroed each time",
          "[arena]") {
  const auto arena = create();
  const auto blocks = [&] {
    struct stat info {};
    REQUIRE(fstat(arena->fd(), &info) == 0);
    return info.st_blocks * 512;
  };
  const auto before = blocks();
  CHECK(before < static_cast<off_t>(small_layout().total_bytes()));
  for (int round = 0; round < 2; ++round) {
    REQUIRE(arena->reserve_channels(3).ok());
    CHECK(blocks() >= before + static_cast<off_t>(small_layout().group_bytes()));
    CHECK(arena->channel(3 * small_layout().channels())->packed == 0);
    CHECK(arena->buffer(3 * small_layout().channels() + 1, 1)[5] == std::byte{0});
    arena->channel(3 * small_layout().channels())->packed = 7;
    arena->buffer(3 * small_layout().channels() + 1, 1)[5] = std::byte{7};
    arena->release_channels(3);
    CHECK(blocks() == before);
    // In two halves.
    REQUIRE(arena->reserve_controls(3).ok());
    CHECK(blocks() == before + static_cast<off_t>(small_layout().control_bytes()));
    CHECK(arena->channel(3 * small_layout().channels())->packed == 0);
    arena->channel(3 * small_layout().channels())->packed = 7;
    REQUIRE(arena->reserve_buffers(3).ok());
    CHECK(blocks() == before + static_cast<off_t>(small_layout().group_bytes()));
    CHECK(arena->channel(3 * small_layout().channels())->packed == 7);
    CHECK(arena->buffer(3 * small_layout().channels() + 1, 1)[5] == std::byte{0});
    arena->release_channels(3);
    CHECK(blocks() == before);
  }
}

TEST_CASE("two attachments in one process share one mapping, which goes with the last", "[arena]") {
  REQUIRE(mapped_arenas() == 0);
  auto owner = create();
  auto first = attach(owner->fd(), small_layout());
  auto second = attach(owner->fd(), small_layout());
  REQUIRE((first.ok() && second.ok()));
  CHECK(first.value()->buffer(0, 0) == owner->buffer(0, 0));
  CHECK(second.value()->buffer(0, 0) == owner->buffer(0, 0));
  CHECK(mapped_arenas() == 1);
  owner.reset();
  first.value().reset();
  second.value()->buffer(0, 0)[0] = std::byte{1};
  CHECK(mapped_arenas() == 1);
  second.value().reset();
  CHECK(mapped_arenas() == 0);
}

TEST_CASE("an attachment is refused when layout, rank or epoch differ", "[arena]") {
  const auto arena = create();
  host::ArenaLayout other = small_layout();
  other.buffers = 3;
  CHECK(attach(arena->fd(), other).status().code() == Code::kFailedPrecondition);  // another size
  other = small_layout();
  std::swap(other.chunk_bytes, other.ring_bytes);
  other.chunk_bytes = 2048;
  other.buffers = 4;  // the same size, other offsets
  REQUIRE(other.total_bytes() == small_layout().total_bytes());
  CHECK(attach(arena->fd(), other).status().code() == Code::kFailedPrecondition);
  CHECK(attach(arena->fd(), small_layout(), 2).status().code() == Code::kFailedPrecondition);
  CHECK(attach(arena->fd(), small_layout(), 1, 8).status().code() == Code::kFailedPrecondition);
  CHECK(attach(arena->fd(), small_layout()).ok());
}

TEST_CASE("an arena says whose it is", "[arena]") {
  const auto mine = create();
  const auto again = attach(mine->fd(), small_layout());
  REQUIRE(again.ok());
  CHECK(again.value()->header().pid == getpid());
  CHECK(again.value()->header().cookie == mine->header().cookie);
  CHECK(create()->header().cookie != mine->header().cookie);
  uint64_t cookie = 0;
  std::memcpy(&cookie, reinterpret_cast<const void*>(mine->header().cookie_address), 8);
  CHECK(cookie == mine->header().cookie);
}

TEST_CASE("memory that could shrink under the reader is refused", "[arena]") {
  const int fd = memfd_create("not-an-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(fd >= 0);
  REQUIRE(ftruncate(fd, static_cast<off_t>(small_layout().total_bytes())) == 0);
  const auto attached = host::Arena::attach(UniqueFd(fd), small_layout(), 1, 9);
  CHECK(attached.status().code() == Code::kFailedPrecondition);
  CHECK_THAT(attached.status().message(), Catch::Contains("sealed"));
}

TEST_CASE("a forked child has neither the mapping nor the descriptor", "[arena]") {
  const auto arena = create();
  const int fd = arena->fd();
  const pid_t child = fork();
  if (child == 0) _exit(mapped_arenas() == 0 && fcntl(fd, F_GETFD) < 0 ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(mapped_arenas() == 1);
}

}  // namespace
}  // namespace rueda::host

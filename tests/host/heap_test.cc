#include "collectives/host/heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "collectives/host/heap_ranges.h"

namespace rueda::host {
namespace {

constexpr size_t kHeapBytes = 64 << 20;

Heap& heap() {
  auto made = Heap::of_process(kHeapBytes);
  if (!made.ok()) FAIL(made.status().to_string());
  return *made.value();
}

std::byte* allocate(size_t bytes) {
  auto memory = heap().allocate(bytes);
  if (!memory.ok()) FAIL(memory.status().to_string());
  return memory.value();
}

bool all_are(const std::byte* memory, size_t bytes, int value) {
  return std::all_of(memory, memory + bytes,
                     [value](std::byte b) { return b == static_cast<std::byte>(value); });
}

void fill(std::byte* memory, size_t bytes, int value) { std::memset(memory, value, bytes); }

size_t pages_that_exist() {
  struct stat info {};
  REQUIRE(fstat(heap().fd(), &info) == 0);
  return static_cast<size_t>(info.st_blocks) * 512;
}

int exit_code(pid_t child) {
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_CASE("free ranges are joined, and the smallest that fits is taken", "[heap]") {
  FreeRanges ranges;
  ranges.add({0, 10});
  ranges.add({20, 5});
  ranges.add({40, 10});
  CHECK(ranges.take(5) == 20u);
  CHECK(ranges.take(4) == 0u);  // the lowest of two equal ones; 4..9 is left
  CHECK(ranges.take(11) == std::nullopt);
  ranges.add({0, 4});
  ranges.add({20, 5});
  ranges.add({10, 10});
  CHECK(ranges.largest() == 25);  // 0..24
  ranges.add({25, 15});
  CHECK(ranges.largest() == 50);
  CHECK(ranges.total() == 50);
  CHECK(ranges.take_largest()->bytes == 50);
  CHECK(ranges.take_largest() == std::nullopt);
}

TEST_CASE("there is one heap per process, sealed, and without pages at first", "[heap]") {
  Heap& first = heap();
  CHECK(Heap::of_process(1 << 20).value() == &first);
  CHECK(Heap::existing() == &first);
  CHECK(first.bytes() == kHeapBytes);
  CHECK(pages_that_exist() == 0);
  CHECK(ftruncate(first.fd(), 0) != 0);
  CHECK(ftruncate(first.fd(), 2 * kHeapBytes) != 0);
  int outside = 0;
  CHECK_FALSE(first.contains(&outside));
  CHECK_FALSE(first.contains(nullptr));
  CHECK(first.contains(first.base() + kHeapBytes - 1));
  CHECK_FALSE(first.contains(first.base() + kHeapBytes));
}

TEST_CASE("blocks are aligned, zeroed, apart from each other, and zeroed again", "[heap]") {
  const size_t sizes[] = {
      0, 1, 63, 64, 65, 257, 4096, 5000, 65535, 64 << 10, 65 << 10, (1 << 20) + 1, 9 << 20};
  for (int round = 0; round < 3; ++round) {
    std::vector<std::byte*> blocks;
    for (const size_t bytes : sizes) {
      std::byte* const block = allocate(bytes);
      INFO(bytes << " bytes, round " << round);
      CHECK(reinterpret_cast<uintptr_t>(block) % 64 == 0);
      if (bytes >= 64 << 10) CHECK(reinterpret_cast<uintptr_t>(block) % 4096 == 0);
      CHECK((heap().contains(block) && heap().contains(block + bytes)));
      CHECK(all_are(block, bytes, 0));
      fill(block, bytes, static_cast<int>(blocks.size() + 1));
      blocks.push_back(block);
    }
    for (size_t i = 0; i < blocks.size(); ++i)
      CHECK(all_are(blocks[i], sizes[i], static_cast<int>(i + 1)));
    for (std::byte* block : blocks) heap().free(block);
    CHECK(heap().in_use() == 0);
  }
}

TEST_CASE("any order of allocating and freeing keeps contents and loses nothing", "[heap]") {
  struct Block {
    std::byte* memory;
    size_t bytes;
    int value;
  };
  const auto seed = GENERATE(1u, 2u, 3u);
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  for (int step = 0; step < 1500; ++step) {
    const bool grow = random() % 100 < (step < 1000 ? 60 : 30);
    if (grow || blocks.empty()) {
      // Sizes spread over all magnitudes, a few hundred KiB on the average.
      const size_t bytes = random() % (size_t{1} << (random() % 22));
      auto memory = heap().allocate(bytes);
      if (!memory.ok()) continue;
      REQUIRE(all_are(memory.value(), bytes, 0));
      const int value = static_cast<int>(1 + random() % 255);
      fill(memory.value(), bytes, value);
      blocks.push_back({memory.value(), bytes, value});
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      REQUIRE(all_are(blocks.back().memory, blocks.back().bytes, blocks.back().value));
      heap().free(blocks.back().memory);
      blocks.pop_back();
    }
  }
  for (const Block& block : blocks) {
    REQUIRE(all_are(block.memory, block.bytes, block.value));
    heap().free(block.memory);
  }
  CHECK(heap().in_use() == 0);
  heap().free(allocate(kHeapBytes));  // everything has grown together again
}

TEST_CASE("the peak is the most that was in use at once", "[heap]") {
  const size_t before = heap().peak();
  std::byte* const one = allocate(kHeapBytes / 2);
  std::byte* const other = allocate(kHeapBytes / 2);
  CHECK(heap().peak() == kHeapBytes);
  heap().free(one);
  heap().free(other);
  CHECK(heap().in_use() == 0);
  CHECK(heap().peak() == kHeapBytes);
  CHECK(before <= kHeapBytes);
}

TEST_CASE("a full heap says how much is in use and what to do, and goes on", "[heap]") {
  std::vector<std::byte*> blocks;
  for (;;) {
    auto memory = heap().allocate(4 << 20);
    if (!memory.ok()) {
      CHECK(memory.status().code() == Code::kResourceExhausted);
      CHECK_THAT(memory.status().message(),
                 Catch::Contains("64 MiB of this process's heap of 64") &&
                     Catch::Contains("RUEDA_HEAP_BYTES") && Catch::Contains("free tensors"));
      break;
    }
    blocks.push_back(memory.value());
  }
  CHECK(blocks.size() == 16);
  CHECK(heap().allocate(1).status().code() == Code::kResourceExhausted);
  heap().free(blocks.back());
  blocks.back() = allocate(1);  // a slab where the large block was
  for (std::byte* block : blocks) heap().free(block);
  for (const size_t bytes : {kHeapBytes + 1, SIZE_MAX, SIZE_MAX - 4096}) {
    const auto refused = heap().allocate(bytes);
    CHECK(refused.status().code() == Code::kResourceExhausted);
    CHECK_THAT(refused.status().message(), Catch::Contains("larger than the heap"));
  }
  CHECK(heap().in_use() == 0);
}

// 0 if the pages of a block exist and are in the page table: bit 63 of an entry of pagemap, or 62
// while the kernel, which compacts memory, moves that page.
int look_at_new_block() {
  constexpr size_t kBytes = 8 << 20;
  auto own = Heap::of_process(2 * kBytes);
  auto block = own.ok() ? own.value()->allocate(kBytes) : Result<std::byte*>(own.status());
  struct stat info {};
  if (!block.ok() || fstat(own.value()->fd(), &info) != 0) return 2;
  if (info.st_blocks * 512 < static_cast<off_t>(kBytes)) return 3;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  static uint64_t entries[kBytes / 4096];
  const size_t bytes = kBytes / page * 8;
  const size_t first = reinterpret_cast<uintptr_t>(block.value()) / page * 8;
  const UniqueFd map(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!map) return 0;  // not every container has it
  if (pread(map.get(), entries, bytes, static_cast<off_t>(first)) != static_cast<ssize_t>(bytes))
    return 4;
  return std::all_of(entries, entries + bytes / 8, [](uint64_t e) { return e >> 62 != 0; }) ? 0 : 5;
}

TEST_CASE("a block has its pages before it is handed out", "[heap]") {
  const pid_t child = fork();  // for a heap that nothing was in before
  if (child == 0) _exit(look_at_new_block());
  CHECK(exit_code(child) == 0);
}

TEST_CASE("attaching to the own heap gives the same addresses", "[heap]") {
  const auto peer = host::PeerHeap::attach(UniqueFd(fcntl(heap().fd(), F_DUPFD_CLOEXEC, 0)));
  REQUIRE(peer.ok());
  CHECK(peer.value()->base() == heap().base());
  CHECK(peer.value()->bytes() == heap().bytes());
}

TEST_CASE("a peer's memory that could shrink, or is empty, is refused", "[heap]") {
  const auto attach = [](off_t bytes, int seals) {
    UniqueFd fd(memfd_create("not-a-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(fd.get(), bytes) == 0);
    REQUIRE(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
    return host::PeerHeap::attach(std::move(fd)).status();
  };
  CHECK(attach(1 << 20, F_SEAL_SHRINK | F_SEAL_GROW).ok());
  CHECK_THAT(attach(1 << 20, F_SEAL_GROW).message(), Catch::Contains("sealed"));
  CHECK(attach(0, F_SEAL_SHRINK | F_SEAL_GROW).code() == Code::kFailedPrecondition);
  CHECK(attach(5000, F_SEAL_SHRINK | F_SEAL_GROW).code() == Code::kFailedPrecondition);
  CHECK_FALSE(host::PeerHeap::attach(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC))).ok());
}

TEST_CASE("what a forked child writes stays in the child", "[heap][fork]") {
  std::byte* const large = allocate(1 << 20);
  std::byte* const small = allocate(100);
  fill(large, 1 << 20, 1);
  fill(small, 100, 2);
  auto peer_of_self = host::PeerHeap::attach(UniqueFd(fcntl(heap().fd(), F_DUPFD_CLOEXEC, 0)));
  Heap* const mine = &heap();
  const pid_t child = fork();
  if (child == 0) {
    bool good = all_are(large, 1 << 20, 1) && all_are(small, 100, 2);  // it reads its parent's
    fill(large, 1 << 20, 7);
    fill(small, 100, 7);
    good = good && all_are(large, 1 << 20, 7) && fcntl(mine->fd(), F_GETFD) < 0;
    mine->free(small);  // as a tensor's finalizer does
    good = good && Heap::existing() == nullptr;
    good = good && mine->allocate(1).status().code() == Code::kFailedPrecondition;
    auto own = Heap::of_process(1 << 20);  // a job of its own
    good = good && own.ok() && own.value()->base() != mine->base() &&
           own.value()->allocate(1000).ok() && all_are(small, 100, 7);
    _exit(good ? 0 : 1);
  }
  CHECK(exit_code(child) == 0);
  CHECK(all_are(large, 1 << 20, 1));
  CHECK(all_are(small, 100, 2));
  heap().free(large);
  heap().free(small);
}

TEST_CASE("a block at a second place is the same memory, and not a child's", "[heap][fork]") {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = size_t{1 << 20} - 10;  // the last page is not full
  std::byte* const block = allocate(bytes);
  void* const other =
      mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(other != MAP_FAILED);
  REQUIRE(heap().map_at(block, bytes, other).ok());
  fill(static_cast<std::byte*>(other), bytes, 9);
  CHECK(all_are(block, bytes, 9));
  const pid_t child = fork();
  if (child == 0) {
    unsigned char there = 0;
    _exit(mincore(other, page, &there) == -1 ? 0 : 1);
  }
  CHECK(exit_code(child) == 0);
  std::byte* const small = allocate(100);
  CHECK(heap().map_at(small, 100, other).code() == Code::kInvalidArgument);
  CHECK(heap().map_at(block, bytes + page, other).code() == Code::kInvalidArgument);
  CHECK(heap().map_at(block + page, page, other).code() == Code::kInvalidArgument);
  CHECK(heap().map_at(static_cast<std::byte*>(other), page, other).code() ==
        Code::kInvalidArgument);
  CHECK(heap().map_at(block, bytes, static_cast<std::byte*>(other) + 64).code() ==
        Code::kInvalidArgument);
  CHECK(all_are(static_cast<std::byte*>(other), bytes, 9));
  REQUIRE(munmap(other, 1 << 20) == 0);
  heap().free(small);
  heap().free(block);
}

TEST_CASE("what moves to fresh memory keeps contents and addresses, and nobody else reaches it",
          "[heap][fork]") {
  constexpr size_t kBytes = 256 << 10;
  std::byte* const large = allocate(kBytes);
  std::byte* const small = allocate(100);
  std::byte* const freed = allocate(kBytes);
  std::memset(large, 1, kBytes);
  std::memset(small, 2, 100);
  std::memset(freed, 3, kBytes);
  heap().free(freed);
  void* const second =
      mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(heap().map_at(large, kBytes, second).ok());
  const UniqueFd old(fcntl(heap().fd(), F_DUPFD_CLOEXEC, 3));
  const std::byte* const base = heap().base();
  const size_t used = heap().in_use();

  REQUIRE(heap().move_to_fresh_memory().ok());
  CHECK(heap().base() == base);
  CHECK(heap().in_use() == used);
  CHECK(all_are(large, kBytes, 1));
  CHECK(all_are(small, 100, 2));
  // Who has the old memory writes all over it.
  const std::vector<std::byte> nonsense(kBytes, std::byte{9});
  const auto place = static_cast<off_t>(large - base);
  REQUIRE(pwrite(old.get(), nonsense.data(), kBytes, place) == static_cast<ssize_t>(kBytes));
  CHECK(all_are(large, kBytes, 1));
  CHECK(all_are(static_cast<std::byte*>(second), kBytes, 1));
  large[5] = std::byte{7};
  CHECK(static_cast<std::byte*>(second)[5] == std::byte{7});
  std::byte seen{};
  REQUIRE(pread(heap().fd(), &seen, 1, place + 5) == 1);
  CHECK(seen == std::byte{7});
  auto own = PeerHeap::attach(UniqueFd(fcntl(heap().fd(), F_DUPFD_CLOEXEC, 3)));
  REQUIRE(own.ok());
  CHECK(own.value()->base() == base);
  std::byte* const again = allocate(kBytes);
  CHECK(all_are(again, kBytes, 0));
  for (std::byte* const block : {again, small}) heap().free(block);
  munmap(second, kBytes);
  heap().free(large);
}

TEST_CASE("memory moves while other threads allocate and free, under the same number", "[heap]") {
  constexpr size_t kBytes = 128 << 10;
  const int number = heap().fd();
  std::byte* const kept = allocate(kBytes);
  std::memset(kept, 1, kBytes);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0}, rounds{0};
  const auto use = [&] {
    do {
      for (const size_t bytes : {kBytes, size_t{4} << 20, size_t{100}}) {
        const auto block = heap().allocate(bytes);
        if (!block.ok() || !all_are(block.value(), bytes, 0)) ++wrong;
        if (block.ok()) heap().free(block.value());
      }
      ++rounds;
    } while (!done.load());
  };
  std::thread first(use), second(use);
  for (int i = 0; i < 20; ++i) {
    const int before = rounds.load();
    if (!heap().move_to_fresh_memory().ok() || heap().fd() != number) ++wrong;
    while (rounds.load() == before) std::this_thread::yield();
  }
  done = true;
  first.join();
  second.join();
  CHECK(wrong == 0);
  CHECK(all_are(kept, kBytes, 1));
  heap().free(kept);
}

TEST_CASE("what is not zeroed costs no clearing", "[heap]") {
  heap().free(allocate(kHeapBytes));
  std::byte* const first = allocate(1 << 20);
  fill(first, 1 << 20, 3);
  heap().free(first);
  auto again = heap().allocate(1 << 20, false);
  REQUIRE(again.ok());
  if (again.value() == first) CHECK(all_are(first, 1 << 20, 3));
  heap().free(again.value());
  CHECK(all_are(allocate(1 << 20), 1 << 20, 0));
  heap().free(first);
}

TEST_CASE("two processes see each other's writes", "[heap][fork]") {
  int sockets[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  // The child's heap comes to its parent as file descriptors do between ranks.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  size_t offset = 0;
  iovec data{&offset, sizeof(offset)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    auto own = Heap::of_process(8 << 20);
    auto block = own.ok() ? own.value()->allocate(100000) : Result<std::byte*>(own.status());
    if (!block.ok()) _exit(2);
    std::memset(block.value(), 5, 100000);
    offset = static_cast<size_t>(block.value() - own.value()->base());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = own.value()->fd();
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    if (sendmsg(sockets[1], &message, MSG_NOSIGNAL) < 0) _exit(3);
    char answer = 0;
    if (read(sockets[1], &answer, 1) != 1) _exit(4);
    _exit(all_are(block.value(), 100000, 6) ? 0 : 5);
  }
  close(sockets[1]);
  const bool received = recvmsg(sockets[0], &message, MSG_CMSG_CLOEXEC) == sizeof(offset);
  if (received) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    const auto peer = host::PeerHeap::attach(UniqueFd(fd));
    REQUIRE(peer.ok());
    CHECK(peer.value()->bytes() == 8 << 20);
    CHECK(all_are(peer.value()->base() + offset, 100000, 5));
    fill(peer.value()->base() + offset, 100000, 6);
    CHECK(write(sockets[0], "", 1) == 1);
  }
  CHECK(exit_code(child) == 0);
  CHECK(received);
  close(sockets[0]);
}

TEST_CASE("threads allocate and free at once, also each other's blocks", "[heap][threads]") {
  constexpr int kThreads = 4;
  std::vector<std::byte*> exchange(kThreads, nullptr);
  std::vector<std::thread> threads;
  std::vector<int> bad(kThreads, 0);
  std::mutex mutex;
  for (int me = 0; me < kThreads; ++me) {
    threads.emplace_back([&, me] {
      std::mt19937 random(static_cast<unsigned>(me));
      for (int step = 0; step < 200; ++step) {
        const size_t bytes = 1 + random() % (random() % 8 == 0 ? 1 << 20 : 3000);
        auto memory = heap().allocate(bytes);
        if (!memory.ok() || !all_are(memory.value(), bytes, 0)) ++bad[static_cast<size_t>(me)];
        if (!memory.ok()) return;
        fill(memory.value(), bytes, me + 1);
        std::byte* other = memory.value();
        {
          const std::lock_guard<std::mutex> lock(mutex);
          std::swap(other, exchange[random() % kThreads]);
        }
        heap().free(other);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const int count : bad) CHECK(count == 0);
  for (std::byte* block : exchange) heap().free(block);
  CHECK(heap().in_use() == 0);
}

}  // namespace
}  // namespace rueda::host

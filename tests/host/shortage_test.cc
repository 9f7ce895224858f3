// A host that has no shared memory left says so where memory is reserved, with what there is;
// nobody dies of it later.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstddef>

#include "collectives/host/arena.h"
#include "collectives/host/heap.h"

namespace rueda::host {
namespace {

// From here on the kernel has no page for this process's files. False where it may not be told so.
bool run_out_of_pages() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(rules)), rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

host::ArenaLayout one_layout() {
  host::ArenaLayout layout;
  layout.local_size = 2;
  layout.chunk_bytes = 4096;
  layout.buffers = 2;
  layout.ring_bytes = 4096;
  return layout;
}

// What three kinds of memory say when there is none, a line each.
std::string said_without_pages() {
  const auto before = host::Arena::create(one_layout(), 0, 1);
  const auto heap = Heap::of_process(16 << 20);
  if (!before.ok() || !heap.ok()) return "no memory at all";
  if (!run_out_of_pages()) return "no filter";
  const auto say = [](const Status& status) {
    return (status.code() == Code::kResourceExhausted ? "exhausted: " : "other: ") +
           status.message() + "\n";
  };
  return say(host::Arena::create(one_layout(), 0, 1).status()) +
         say(before.value()->reserve_channels(3)) + say(heap.value()->allocate(8 << 20).status());
}

}  // namespace

TEST_CASE("without pages arenas, process sets and heaps are refused with what there is",
          "[shortage]") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = said_without_pages();
    _exit(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string said;
  char bytes[4096];
  for (ssize_t got = 1; got > 0; said.append(bytes, static_cast<size_t>(std::max<ssize_t>(got, 0))))
    got = read(ends[0], bytes, sizeof(bytes));
  close(ends[0]);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  if (said == "no filter") {
    WARN("this kernel takes no seccomp filter");
    return;
  }
  INFO(said);
  size_t begin = 0;
  for (const char* what : {" bytes of shared memory (lower RUEDA_CHUNK_BYTES",
                           " bytes of shared memory for a group of ranks", "shared memory"}) {
    const size_t end = said.find('\n', begin);
    REQUIRE(end != std::string::npos);
    CHECK_THAT(said.substr(begin, end - begin),
               Catch::StartsWith("exhausted: ") && Catch::Contains(what) &&
                   Catch::Contains("cannot reserve") && Catch::Contains("this host has "));
    begin = end + 1;
  }
}

}  // namespace rueda::host

// What the calls of ordered groups go through: channels of shared memory for many groups at once,
// buffers when they are needed, and the protocol that was measured.
#include <catch2/catch.hpp>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "runtime/membership/joining.h"
#include "runtime/negotiation/protocol_chooser.h"
#include "tests/runtime/group_calls.h"

namespace rueda::testing {
namespace {

using K = CollectiveKind;
using negotiation::ProtocolChooser;

constexpr size_t kLarge = 3000;  // floats: more than a post holds

TEST_CASE("64 groups of a rank are opened by a word to each member, and all share memory",
          "[ordered_group]") {
  RuntimeWorld world(Kind::kShm, 4);
  constexpr int kGroups = 64;
  const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
    const Ranks pair = rank < 2 ? Ranks{1, 0} : Ranks{2, 3};
    const int64_t words = r.counter("control_messages");
    std::vector<uint32_t> groups;
    for (int i = 0; i < kGroups; ++i)
      groups.push_back(must(r.open_group("group " + std::to_string(i), pair)));
    // They have all been heard of when the last has run.
    std::string trouble = trouble_with_group(r, groups.back(), pair);
    if (!trouble.empty()) return trouble;
    const int64_t said = r.counter("control_messages") - words;
    if (said != kGroups) return std::to_string(said) + " words";
    const int64_t before = r.counter("bytes_reduced");
    std::vector<Floats> data;
    for (int i = 0; i < 2 * kGroups; ++i)
      data.emplace_back(i % 2 == 0 ? 5 : kLarge, static_cast<float>(rank + i));
    for (int round = 0; round < 2; ++round) {
      std::vector<RequestPtr> requests;
      for (size_t i = 0; i < data.size(); ++i) {
        std::fill(data[i].begin(), data[i].end(), static_cast<float>(rank) + float(i));
        requests.push_back(start(r, call_of(groups[i / 2], K::kAllreduce, data[i], &data[i])));
      }
      for (const RequestPtr& request : requests) must(end_of(request));
      for (size_t i = 0; i < data.size(); ++i) {
        const auto sum = static_cast<float>(pair[0] + pair[1]) + 2 * static_cast<float>(i);
        if (data[i] != Floats(data[i].size(), sum)) return "wrong sum";
      }
    }
    // And each group's members have once asked each other for buffers, a byte each.
    const auto all = static_cast<int64_t>(kGroups * (2 * (5 + kLarge) * sizeof(float) + 2));
    const int64_t reduced = r.counter("bytes_reduced") - before;
    return reduced == all ? "" : std::to_string(reduced) + " of " + std::to_string(all) + " bytes";
  });
  for (const auto& error : errors) CHECK(error == "");
}

// ---- no memory for buffers ----

// From here on the kernel has no page for this process's files at this offset. False where it may
// not be told so.
bool run_out_of_pages_at(uint64_t offset) {
  constexpr auto kOffset = offsetof(seccomp_data, args) + 2 * sizeof(uint64_t);  // little endian
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + sizeof(uint64_t)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3),  // no hole, an allocation
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kOffset),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(offset), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(rules)), rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Rank 0 has no buffers for its channels of the group, the others have.
std::string said_without_buffers() {
  const Rank size = 3;
  const Config config = very_patient();
  const host::ArenaLayout layout = membership::layout_of(config, size);
  const size_t second = host::kProcessSetChannels + 1;
  const uint64_t offset =
      layout.groups_offset() + (second - 1) * layout.group_bytes() + layout.control_bytes();
  if (!run_out_of_pages_at(offset)) return "no filter";
  RuntimeWorld world(Kind::kShm, size, config);
  const Ranks list = {2, 0, 1};
  const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
    // Takes rank 0's first channels.
    if (rank == 0) must(r.open_group("of rank 0", {0, 1}));
    const uint32_t group = must(r.open_group("g", list));
    const auto trouble = [&](size_t count) { return trouble_with_group(r, group, list, count); };
    const int64_t before = r.counter("bytes_reduced");
    Floats rows(kLarge + static_cast<size_t>(rank), static_cast<float>(rank));
    for (int round = 0; round < 3; ++round) {
      // Small ones are under way beside those that learn of it.
      Floats small(3, 1);
      const RequestPtr beside = start(r, call_of(group, K::kAllreduce, small, &small));
      for (const size_t count : {size_t{10}, kLarge, size_t{200'000}})
        if (const std::string wrong = trouble(count); !wrong.empty()) return wrong;
      must(end_of(beside));
      if (small != Floats(3, 3)) return "small";
      // Rows that nobody knows beforehand.
      const RequestPtr gathered = start(r, call_of(group, K::kAllgather, rows, nullptr));
      must(end_of(gathered));
      const Floats all = result_of(gathered);
      if (all.size() != 3 * kLarge + 3 || all.front() != 2 || all.back() != 1) return "allgather";
    }
    const int64_t in_memory = r.counter("bytes_reduced") - before;
    // The next group has other channels (the others' second ones have no buffers either).
    must(r.open_group("spare of " + std::to_string(rank), {rank, (rank + 1) % size}));
    const uint32_t next = must(r.open_group("next", list));
    const int64_t then = r.counter("bytes_reduced");
    const std::string wrong = trouble_with_group(r, next, list, kLarge);
    if (!wrong.empty()) return wrong;
    const auto bytes = static_cast<int64_t>(kLarge * sizeof(float) + list.size());
    const int64_t in_next = r.counter("bytes_reduced") - then;
    if (in_next != bytes) return std::to_string(in_next) + " bytes in the next group";
    return in_memory == static_cast<int64_t>(3 * 13 * sizeof(float) + list.size())
               ? "right"
               : std::to_string(in_memory) + " bytes in memory";
  });
  std::string all;
  for (const std::string& text : texts) all += text + ";";
  return all;
}

TEST_CASE("where one member has no memory for buffers, large calls of all are messages",
          "[ordered_group]") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string text;
    try {
      text = said_without_buffers();
    } catch (const std::exception& error) {
      text = error.what();
    }
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
  if (said == "no filter") {
    WARN("this kernel takes no seccomp filter");
    return;
  }
  CHECK(said == "right;right;right;");
}

// ---- the protocol ----

TEST_CASE("a group measures which protocol is faster, as a process set does, without a message",
          "[ordered_group]") {
  for (const std::string forced : {"auto", "staged", "cma"}) {
    INFO(forced);
    Config config = very_patient();
    config.shm_protocol = forced;
    RuntimeWorld world(Kind::kShm, 2, config);
    const auto texts = world.run([&](Rank, engine::Runtime& r) -> std::string {
      constexpr size_t kCount = 50'000;
      constexpr auto kBytes = static_cast<int64_t>(kCount * sizeof(float));
      const Ranks list = {1, 0};
      const uint32_t group = must(r.open_group("g", list));
      const auto calls = [&](size_t count) {
        for (size_t i = 0; i < count; ++i)
          must(trouble_with_group(r, group, list, kCount).empty() ? Status() : cancelled("wrong"));
      };
      calls(2);  // each has looked whether it can read the others' memory
      const int64_t words = r.counter("control_messages");
      const int64_t before = r.counter("bytes_cma");
      calls(2 * ProtocolChooser::kTries + 2);
      const int64_t tried = r.counter("bytes_cma") - before;
      const int64_t then = r.counter("bytes_cma");
      calls(10);
      const int64_t settled = r.counter("bytes_cma") - then;
      if (r.counter("control_messages") != words) return "words";
      const auto kTries = static_cast<int64_t>(ProtocolChooser::kTries);
      if (forced == "staged") return tried + settled == 0 ? "right" : "not staged";
      if (forced == "cma")
        return tried == (2 * kTries + 2) * kBytes && settled == 10 * kBytes ? "right" : "not cma";
      if (tried < (kTries - 2) * kBytes || tried > (kTries + 4) * kBytes)
        return std::to_string(tried / kBytes) + " tries";
      return settled == 0 || settled == 10 * kBytes
                 ? "right"
                 : std::to_string(settled / kBytes) + " of 10 when settled";
    });
    for (const std::string& text : texts) CHECK(text == "right");
  }
}

}  // namespace
}  // namespace rueda::testing

// The life page: one page of memory that a process of a job shares with its agent and with nobody
// else. The rank writes what shows that it lives and what it does; the agent writes who was lost.
//
//   rank   owner      a robust futex of a thread that lives as long as the process: the kernel
//                     marks it at the very start of the process's end, long before memory is freed
//                     and sockets close
//          presence   whether that end would be a loss
//          crash      written by signal handlers, since a core dump comes before that end
//          operation  what was submitted last; counters
//   agent  lost       the first verdict of the newest epoch that ended, and its cause once known
//          announced  that members are about to change
//
// Memory:  a sealed memfd made by the agent; the rank inherits the descriptor. No pointers.
// Threads: owner, crash: as told below. Published fields: one writer, any readers, no locks.
// Trust:   the agent copies first and checks then; a rank that writes nonsense harms its own name
//          only.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "collectives/host/fence.h"

namespace rueda::life {

// A value that one process writes and another reads, whole or not at all. A writer that dies in the
// middle leaves what is there readable: texts are cut at their end, numbers may be of two versions.
template <typename T>
class Published {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);

 public:
  // from: bytes before that are as they were, a multiple of 8.
  void publish(const T& value, size_t from = 0) {
    const size_t first = from / 8;
    uint64_t words[kWords];
    std::memcpy(words + first, reinterpret_cast<const std::byte*>(&value) + 8 * first,
                sizeof(T) - 8 * first);
    const uint32_t version = version_.load(std::memory_order_relaxed) & ~1U;
    version_.store(version + 1, std::memory_order_relaxed);
    host::seqlock_fence(std::memory_order_release);
    for (size_t i = first; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
    version_.store(version + 2, std::memory_order_release);
  }
  // 0: nothing yet. Changes with every value.
  uint32_t version() const { return version_.load(std::memory_order_acquire) & ~1U; }
  T read() const {
    constexpr int kTries = 1000;
    uint64_t words[kWords];
    for (int i = 0; i < kTries; ++i) {
      const uint32_t before = version_.load(std::memory_order_acquire);
      for (size_t w = 0; w < kWords; ++w) words[w] = words_[w].load(std::memory_order_relaxed);
      host::seqlock_fence(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) break;
    }
    T value;
    std::memcpy(&value, words, sizeof(T));
    return value;
  }

 private:
  static constexpr size_t kWords = sizeof(T) / 8;
  std::atomic<uint32_t> version_{0};
  std::atomic<uint64_t> words_[kWords] = {};
};

// Text of bounded length in a struct that is copied as bytes.
template <size_t kBytes>
struct BoundedText {
  char bytes[kBytes] = {};
  void set(std::string_view text) {
    const size_t count = std::min(text.size(), kBytes - 1);
    std::memcpy(bytes, text.data(), count);
    bytes[count] = '\0';
  }
  bool is(std::string_view text) const {
    return text.size() < kBytes && bytes[text.size()] == '\0' &&
           std::memcmp(bytes, text.data(), text.size()) == 0;
  }
  std::string str() const { return {bytes, strnlen(bytes, kBytes - 1)}; }
};

// The operation that a rank submitted last.
struct LastOperation {
  BoundedText<192> name;  // "allreduce.fc1.weight"; of UTF-8, maybe cut
  uint64_t number = 0;    // operations submitted until then, this one included
  uint64_t step = 0;      // optimizer steps begun, where the framework's layer tells them
  int64_t at_ns = 0;      // CLOCK_MONOTONIC
};

// The number of no process; 0 is that of a job's first.
inline constexpr uint64_t kNoMember = std::numeric_limits<uint64_t>::max();

// A rank that was lost, as the agents' first verdict says it. The cause becomes final once the
// process has been reaped: freeing much memory takes long, and the verdict does not wait.
struct LostRank {
  uint64_t epoch = 0;  // that ended with it; 0: the job ends, whatever epoch somebody is in
  uint64_t member = kNoMember;  // the process's number in its job; kNoMember: nobody is lost
  int32_t rank = -1;            // its number in that epoch; -1: the epoch has ended, nobody is lost
  int32_t pid = 0;
  uint64_t operations = 0;  // submitted by it
  uint64_t step = 0;
  int64_t noticed_ns = 0;  // CLOCK_MONOTONIC of its host
  int64_t cause_is_final = 0;
  BoundedText<64> host;
  BoundedText<192> operation;  // the last one; empty: none yet
  BoundedText<256> cause;      // "killed by signal 9 (SIGKILL)", "stopped for 5 s, then killed"
  // "rank 5 (pid 8123 on node2) was lost: killed by signal 9 (SIGKILL); its last operation was
  // allreduce 'fc1.weight' (number 1203, step 40)"
  std::string describe() const;
  // "its last operation was ..."; there must have been one.
  std::string describe_last_operation() const;
  // Whether somebody in that epoch has to give up.
  bool ends(uint64_t other) const { return epoch == 0 || epoch >= other; }
  // The error of who waited for it in that epoch: in another one the rank's number is another's.
  Status verdict(uint64_t in) const {
    Status status = unavailable(describe());
    if (rank < 0 || (epoch != 0 && epoch != in)) return status;
    return status.with_rank(rank).with_host(host.str());
  }
};

// Where a process is in its job.
enum class Presence : uint32_t {
  kFresh = 0,    // has been in no epoch yet
  kInEpoch = 1,  // its end is a loss
  kBetween = 2,  // has left an epoch for the next: its end is a loss
  kLeft = 3,     // has left the job in order, or could not join it
};

enum class Crash : uint32_t {
  kNone = 0,
  kHandled = 1,  // a handler that was there before ours has the last word: it may go on
  kFatal = 2,
};

struct LifePage {
  static constexpr uint64_t kMagic = 0x6566696c61647572;  // "rudalife"
  static constexpr uint32_t kVersion = 4;
  static constexpr uint32_t kNoOwner = 0;
  // A rank has ended with success: nobody comes any more. No change that members leave for.
  static constexpr uint64_t kFinishing = 4;

  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t bytes = sizeof(LifePage);
  uint32_t release = 0;  // of the launcher: version_number()

  // ---- the rank's
  alignas(64) std::atomic<uint32_t> owner{kNoOwner};  // at a multiple of 4, as futexes must be
  std::atomic<int32_t> pid{0};
  std::atomic<uint32_t> presence{0};           // Presence
  alignas(64) std::atomic<uint32_t> crash{0};  // Crash
  std::atomic<int32_t> crash_signal{0};
  std::atomic<uint64_t> crash_address{0};
  alignas(64) std::atomic<uint64_t> rounds{0};  // of the coordinator
  std::atomic<uint64_t> bytes_moved{0};
  // Since when a thread waits for an operation, CLOCK_MONOTONIC (0: none does), and how long
  // threads have waited before, through all epochs.
  alignas(64) std::atomic<int64_t> blocked_since{0};
  std::atomic<int64_t> blocked_ns{0};
  alignas(64) Published<LastOperation> operation;
  Published<BoundedText<48>> gpu;  // the UUID of the one that it uses; empty: none

  // ---- the agent's
  alignas(64) Published<LostRank> lost;
  // Serial number << 8 | what changes (1: members go, 2: some come, kFinishing); 0: nothing yet.
  alignas(64) std::atomic<uint64_t> announced{0};

  Presence where() const { return static_cast<Presence>(presence.load(std::memory_order_acquire)); }
  void be(Presence now) { presence.store(static_cast<uint32_t>(now), std::memory_order_release); }
};
static_assert(sizeof(LifePage) <= 4096 && std::atomic<uint64_t>::is_always_lock_free);

// The mapping of a life page; unmapped with its owner. Forked children do not have it.
class LifeMapping {
 public:
  // A new page in a sealed memfd, with the descriptor to hand on (closed on exec).
  static Result<LifeMapping> create(UniqueFd* fd);
  // Somebody else's; FailedPrecondition if it is of another version.
  static Result<LifeMapping> open(int fd);

  LifePage* page() const { return page_.get(); }
  LifePage* operator->() const { return page_.get(); }

 private:
  struct Unmap {
    void operator()(LifePage* page) const;
  };
  explicit LifeMapping(LifePage* page) : page_(page) {}
  std::unique_ptr<LifePage, Unmap> page_;
};

}  // namespace rueda::life

// Arena: the memory that one rank shares with the other ranks of its host.
//
//   ArenaHeader | SleepWord of messages | SleepWord of lanes
//   | for each lane: LaneControl, entry slots
//   | for each lane: window 0 .. windows-1
//   | ring to local rank 0 .. local_size-1
//   | for each host: when the owner last heard from there
//   | for each further group of ranks: its lanes' controls and entry slots, its lanes' windows
//
// One sealed memfd per rank: it has no name, needs no /dev/shm, and is gone with its last user. The
// owner prefaults it (or gets a clear error that memory is short), passes the fd to its local
// peers, and they map it.
//
// Ownership: shared by whoever holds a pointer into it (communicator, links); unmapped with the
// last of them. Threads:   the mapping is plain memory; who may write what is said at each part.
// Fork:      children do not inherit the mapping. Core dumps of peers leave it out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "collectives/base/fork_guard.h"
#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/transport/byte_ring.h"
#include "collectives/transport/doorbell.h"
#include "collectives/transport/shared_mapping.h"

namespace rueda::transport {

// Lanes of one group of ranks, in which its collectives run independently of each other
// (communicator/lane.h).
inline constexpr size_t kLanes = 2;
// Groups that may have lanes at once. The first is all ranks'; the others have no memory until it
// is reserved for a process set. Lanes are numbered through: lane n belongs to group n / kLanes.
inline constexpr size_t kLaneGroups = 9;

// Sizes, equal for all ranks of a host.
struct ArenaLayout {
  Rank local_size = 1;
  size_t chunk_bytes = 256 << 10;  // of one window
  size_t windows = 4;              // of one lane
  size_t ring_bytes = 128 << 10;   // of one ring; a power of two
  size_t hosts = 1;                // of the job

  size_t windows_offset() const;
  size_t rings_offset() const;
  size_t heard_offset() const;
  size_t groups_offset() const;  // of the further groups
  size_t group_bytes() const;
  size_t total_bytes() const;  // whole pages
  uint64_t hash() const;       // of everything both sides must agree on
};

struct ArenaHeader {
  static constexpr uint64_t kMagic = 0x616e657261647275;  // "urdarena"
  uint64_t magic;
  uint32_t version;
  int32_t local_rank;
  uint64_t layout_hash;
  uint64_t total_bytes;
  uint64_t epoch;
  int64_t pid;              // of the owner, in its own pid namespace
  uint64_t cookie;          // random
  uint64_t cookie_address;  // where the owner's process has the cookie
};

// One cache line of an entry: it is there when its sequence number is.
struct alignas(64) EntryLine {
  static constexpr size_t kPayload = 56;
  std::atomic<uint64_t> sequence;
  std::byte payload[kPayload];
};

// Where a rank publishes one job of a lane. Written by the owner only.
struct EntrySlot {
  static constexpr size_t kLines = 64;
  static constexpr size_t kBlockBytes = 8 << 10;
  EntryLine lines[kLines];
  alignas(64) std::byte block[kBlockBytes];
  // So that the first lines of all slots do not share a set of the first-level cache.
  alignas(64) std::byte shift[128];
};

// A lane's counters, written by the owner only. They only grow (communicator/lane.h says what each
// counts).
struct LaneControl {
  static constexpr size_t kSlots = 16;
  alignas(128) std::atomic<uint64_t> finished;  // jobs
  alignas(128) std::atomic<uint64_t> combined;  // jobs that work on tensors directly
  alignas(128) std::atomic<uint64_t> fetched;
  alignas(128) std::atomic<uint64_t> packed;  // chunks
  alignas(128) std::atomic<uint64_t> reduced;
  alignas(128) std::atomic<uint64_t> unpacked;
  // The owner's last word on the lane's generation (runtime/plan/plan_runner.h).
  alignas(128) std::atomic<uint64_t> last_word;
  // The owner has tried to read all its peers' memory (communicator/pull.h).
  std::atomic<uint32_t> can_pull;
  static constexpr uint32_t kUntried = 0;
  static constexpr uint32_t kCanPull = 1;
  static constexpr uint32_t kCannotPull = 2;
  alignas(128) EntrySlot entries[kSlots];
};

class Arena {
 public:
  static Result<std::shared_ptr<Arena>> create(const ArenaLayout& layout, Rank local_rank,
                                               uint64_t epoch);
  // A peer's arena. Refused unless header, size and seals are as expected. A second attach in the
  // same process (ranks as threads) shares the mapping.
  static Result<std::shared_ptr<Arena>> attach(UniqueFd fd, const ArenaLayout& layout,
                                               Rank local_rank, uint64_t epoch);

  int fd() const { return fd_.get(); }
  const ArenaLayout& layout() const { return layout_; }
  SleepWord* sleep_word() const;  // rung for messages
  SleepWord* lane_word() const;   // rung for progress in lanes
  LaneControl* lane(size_t number) const;
  // A lane's windows lie end to end.
  std::byte* window(size_t lane, size_t index) const;
  // The owner: memory for the lanes of a further group, zeroed; and back. Nobody may use these
  // lanes meanwhile.
  Status reserve_lanes(size_t group);
  void release_lanes(size_t group);
  // As the owner wrote it when it made the arena.
  const ArenaHeader& header() const { return header_; }
  // By host: when the owner last heard from there, in ns of the steady clock; 0: never. Written by
  // the owner only.
  std::atomic<int64_t>* heard() const;
  // The ring whose producer is this arena's owner.
  ByteRing ring_to(Rank local_rank) const;

 private:
  Arena(UniqueFd fd, const ArenaLayout& layout, std::shared_ptr<SharedMapping> mapping,
        const ArenaHeader& header);
  std::byte* base() const;
  std::byte* group(size_t number) const;

  GuardedFd fd_;
  ArenaLayout layout_;
  ArenaHeader header_;  // a copy: what the peers write later does not matter
  std::shared_ptr<SharedMapping> mapping_;
};

}  // namespace rueda::transport

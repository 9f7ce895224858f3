// Arena: the memory that one rank shares with the other ranks of its host.
//
//   ArenaHeader | SleepWord of messages | SleepWord of channels
//   | for each channel: ChannelControl, post cells
//   | for each channel: buffer 0 .. buffers-1
//   | ring to local rank 0 .. local_size-1
//   | for each host: when the owner last heard from there
//   | for each further group of ranks: its channels' controls and post cells, their buffers; it has
//     no memory until that is reserved
//
// One sealed memfd per rank: it has no name, needs no /dev/shm, and is gone with its last user. The
// owner prefaults it (or gets a clear error that memory is short), passes the fd to its local
// peers, and they map it.
//
// Ownership: shared by whoever holds a pointer into it (channels, connections); unmapped with the
//            last of them.
// Threads:   the mapping is plain memory; who may write what is said at each part.
// Fork:      children do not inherit the mapping. Core dumps of peers leave it out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/host/byte_ring.h"
#include "collectives/host/doorbell.h"
#include "collectives/host/fork_guard.h"
#include "collectives/host/shared_mapping.h"

namespace rueda::host {

// Groups of ranks that may have channels at once, in which their collectives run independently of
// each other (collectives/shm/channel.h). The first is all ranks'; the others have no memory until
// it is reserved: the next ones for a process set, whose number is the same on all its members; the
// rest for ordered groups, for which each member takes the next free one of its own arena.
inline constexpr size_t kProcessSetChannels = 9;
inline constexpr size_t kChannelGroups = kProcessSetChannels + 96;

// Sizes, equal for all ranks of a host.
struct ArenaLayout {
  Rank local_size = 1;
  size_t chunk_bytes = 256 << 10;  // of one buffer
  size_t buffers = 4;              // of one channel
  size_t ring_bytes = 128 << 10;   // of one ring; a power of two
  size_t hosts = 1;                // of the job

  // Of one group: one for what is negotiated and one for step plans; over hosts two for each, since
  // a hierarchy has one on the way to the other hosts and one on the way back. Numbered through:
  // channel n belongs to group n / channels().
  size_t channels() const { return hosts > 1 ? 4 : 2; }
  size_t staging_offset() const;
  size_t rings_offset() const;
  size_t heard_offset() const;
  size_t control_bytes() const;  // of a group's channels
  size_t groups_offset() const;  // of the further groups
  size_t group_bytes() const;
  size_t group_buffer_bytes() const;  // of these, its channels' buffers: the end
  size_t total_bytes() const;         // whole pages
  uint64_t hash() const;              // of everything both sides must agree on
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

// One cache line of a post: it is there when its sequence number is.
struct alignas(64) PostLine {
  static constexpr size_t kPayload = 56;
  std::atomic<uint64_t> sequence;
  std::byte payload[kPayload];
};

// Where a rank publishes one operation of a channel. Written by the owner only.
struct PostCell {
  static constexpr size_t kLines = 64;
  static constexpr size_t kBlockBytes = 8 << 10;
  PostLine lines[kLines];
  alignas(64) std::byte block[kBlockBytes];
  // So that the first lines of all cells do not share a set of the first-level cache.
  alignas(64) std::byte shift[128];
};

// How a rank keeps up with the others, in all process sets (runtime/engine/late_ranks.h). Its first
// channel has the one that counts.
struct Pace {
  // Nanoseconds that threads of the owner have slept in planned steps until others came. Written by
  // the owner.
  std::atomic<int64_t> slept;
  // Nanoseconds that the owner's program has waited for its data. Written by the owner.
  std::atomic<int64_t> data;
  // 1: somebody has warned that the owner is slow. Written by whoever does so first.
  std::atomic<uint32_t> named;
};

// A channel's counters, written by the owner only, but for what is said otherwise. They only grow
// (collectives/shm/channel_state.h says what each counts).
struct ChannelControl {
  static constexpr size_t kPosts = 16;
  alignas(128) std::atomic<uint64_t> finished;  // operations
  alignas(128) std::atomic<uint64_t> combined;  // operations that work on tensors directly
  alignas(128) std::atomic<uint64_t> fetched;
  alignas(128) std::atomic<uint64_t> packed;  // chunks
  alignas(128) std::atomic<uint64_t> reduced;
  alignas(128) std::atomic<uint64_t> unpacked;
  // The owner's last word on the channel's generation (runtime/engine/executor.h).
  alignas(128) std::atomic<uint64_t> last_word;
  Pace pace;
  // The owner has tried to read all its peers' memory (collectives/shm/cma.h).
  std::atomic<uint32_t> has_cma;
  static constexpr uint32_t kUntried = 0;
  static constexpr uint32_t kHasCma = 1;
  static constexpr uint32_t kNoCma = 2;
  alignas(128) PostCell posts[kPosts];
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
  SleepWord* sleep_word() const;    // rung for messages
  SleepWord* channel_word() const;  // rung for progress in channels
  ChannelControl* channel(size_t number) const;
  // A channel's buffers lie end to end.
  std::byte* buffer(size_t channel, size_t index) const;
  // The owner: memory for the channels of a further group, zeroed; and back. Nobody may use these
  // channels meanwhile.
  Status reserve_channels(size_t group);
  void release_channels(size_t group);
  // Of channels that nobody has had yet: others may use them already, and what they wrote stays.
  Status reserve_first_channels(size_t group);
  // The same in two halves: first without buffers, which operations that are not small need, then
  // these. Nobody may use the buffers before.
  Status reserve_controls(size_t group);
  Status reserve_buffers(size_t group);
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
  Status reserve(std::byte* begin, size_t bytes);

  GuardedFd fd_;
  ArenaLayout layout_;
  ArenaHeader header_;  // a copy: what the peers write later does not matter
  std::shared_ptr<SharedMapping> mapping_;
};

}  // namespace rueda::host

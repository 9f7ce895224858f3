// Inside a channel: what its files share. See channel.h for the idea.
//
//   channel.cc          the queue: an operation enters, is decided, ends
//   channel_prepare.cc  what is known of an operation before any post is read
//   channel_small.cc    operations whose data travels in the post
//   channel_large.cc    which protocol each tensor of a large operation takes
//   channel_staged.cc   chunk by chunk through staging buffers
//   channel_direct.cc   in place and by CMA
//
// The life of an operation on one rank:
//
//   start --> waiting --enter--> entered --all posts read--> decided --its protocols--> finished
//              (no cell free)    number n   small ones are done here      in order
//
// Counters in shared memory, each with one writer; all carry the generation in their upper bits, so
// what is left of an older one compares as "not there yet":
//
//   finished = n       operations before n are done here: their cells may be written again
//   combined = n       direct operations before n: my shard is combined
//   fetched = n        direct operations before n: I touch no peer's tensor any more
//   packed = s         chunks before s are in my staging buffers
//   reduced = s        chunks before s: my shard is in my staging buffer
//   unpacked = s       chunks before s: I read nobody's staging buffer any more
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "collectives/desc/copy_bytes.h"
#include "collectives/kernels/kernels.h"
#include "collectives/shm/channel.h"
#include "collectives/shm/post.h"

namespace rueda::shm {

// Combined bytes of all ranks' inputs up to which every rank combines for itself.
inline constexpr int64_t kRedundantBytes = 16 << 10;
// A payload up to this travels in lines, beside their sequence numbers.
inline constexpr int64_t kInlineBytes = 18 * post::kLinePayload;
inline constexpr int64_t kGathered = 1024;  // the same with padding, contiguous
// Smaller tensors of a batch always go through buffers: a list post costs more than their copy.
inline constexpr int64_t kDirectBytes = 4 << 10;
inline constexpr int64_t kCmaBytes = 64 << 10;  // smaller ones are not worth a system call
// Results from here on do not fit a last-level cache: written past it where that saves a read.
inline constexpr int64_t kStreamBytes = 32 << 20;
// One round of progress() does about this much.
inline constexpr int64_t kRoundBytes = 1 << 20;
// Bytes combined in one go: all ranks' inputs stay in the first two cache levels.
inline constexpr int64_t kBlockBytes = 16 << 10;
inline constexpr int64_t kCmaPiece = 64 << 10;  // bytes per system call
inline constexpr size_t kListed = host::PostCell::kLines * post::kLinePayload / 16;

// A tensor of some rank as this rank can reach it.
struct Place {
  std::byte* mapped = nullptr;
  uint64_t remote = 0;  // an address of the other process
  bool reachable() const { return mapped != nullptr || remote != 0; }
  Place at(int64_t offset) const {
    if (mapped != nullptr) return {mapped + offset, 0};
    return {nullptr, remote + static_cast<uint64_t>(offset)};
  }
};

// Work of one rank on a tensor that all ranks' memory is reachable for: combine elements
// [begin, begin + count) of everybody's input.
struct Combine {
  size_t listed = 0;
  int64_t begin = 0;
  int64_t count = 0;
  bool push = false;         // write the result into everybody's output, else into the own one
  std::byte* out = nullptr;  // of element `begin`, on this rank
};

// A block to be copied here.
struct Fetch {
  size_t from = 0;
  Place place;
  std::byte* out = nullptr;
  int64_t bytes = 0;
};

enum class Size : uint8_t { kInline, kBlock, kLarge };

struct ChannelOp::Progress {
  // ---- of the op alone (prepare)
  Size size = Size::kLarge;
  int64_t element = 1;           // bytes
  int64_t bytes = 0;             // of the op, as Channel::Bytes counts
  std::vector<int64_t> begins;   // of parts, reducescatter: of shards; elements
  std::vector<size_t> payload;   // bytes of each rank's post
  bool streams = false;          // what is moved to a result is written past the caches
  std::vector<uint32_t> listed;  // parts whose place is in the post
  // ---- of this run
  uint64_t number = 0;
  ChannelOp* next = nullptr;                 // the next one that waits to enter
  size_t ready = 0;                          // ranks whose post has been read
  std::vector<std::array<Place, 2>> places;  // of listed parts: rank-major, in and out
  // Staged. Reductions: one list. Gathering kinds: by source, what it sends through buffers.
  std::vector<PartList> staged;
  std::vector<uint8_t> through_staging;  // alltoall: by source
  int64_t chunk = 0;                     // elements, or bytes where bytes are moved
  uint64_t first = 0;                    // its chunks
  uint64_t last = 0;
  // Direct.
  std::vector<Combine> combines;
  std::vector<Fetch> fetches;
  bool fetches_results = false;  // fetches are of what peers combine
  bool alone = false;  // no other op under way when it was decided: its time means something
  std::chrono::steady_clock::time_point decided{};  // when all ranks' posts had been read
  bool exposed = false;                             // peers touch a tensor of mine directly
  size_t next_piece = 0;                            // of combines, then of fetches
  int64_t piece_done = 0;
  uint64_t direct_bytes[2] = {0, 0};  // in place, cma
};

// To a result. An input and its own place in the result may be the same.
inline void move_out(bool streams, const std::byte* from, std::byte* to, int64_t bytes) {
  if (streams && from != to) {
    kernels::copy_streaming(from, to, static_cast<size_t>(bytes));
  } else {
    copy_bytes(to, from, bytes);
  }
}

struct Channel::State {
  static constexpr size_t kPosts = host::ChannelControl::kPosts;
  static constexpr size_t kNobody = SIZE_MAX;
  using Counter = std::atomic<uint64_t> host::ChannelControl::*;

  State(ChannelGroup g, size_t number);

  // ---- the queue (channel.cc)
  bool room();
  void enter(ChannelOp* op);
  bool enter_waiting();
  bool decide_next();
  bool wait_for_post(const ChannelOp& op);
  int64_t input_bytes(const ChannelOp& op) const;
  bool retire();
  void post(Counter counter, uint64_t value) {
    (peers[me].control->*counter).store(base + value, std::memory_order_release);
    news = true;
  }
  bool all_reached(Counter counter, uint64_t value) const;
  void ring();
  void forget();
  void fail(Status status);
  void lose(Status status);
  ChannelOp* running(uint64_t number) { return ops[number % kPosts]; }
  host::PostCell* cell(size_t rank, uint64_t number) const {
    return &peers[rank].control->posts[number % kPosts];
  }
  uint64_t sequence(uint64_t number) const { return base + number + 1; }

  // ---- preparation
  void prepare(ChannelOp* op);

  // ---- small operations
  void enter_small(ChannelOp* op);
  bool read_small(ChannelOp* op);
  void consume(ChannelOp* op);

  // ---- large operations
  void enter_large(ChannelOp* op);
  bool read_large(ChannelOp* op);
  bool read_places(ChannelOp* op, size_t rank);
  int64_t listed_bytes(const ChannelOp& op, size_t rank, size_t index) const;
  void choose_protocols(ChannelOp* op);
  void choose_allreduce(ChannelOp* op);
  void choose_reducescatter(ChannelOp* op);
  void choose_gather(ChannelOp* op);
  void choose_alltoall(ChannelOp* op);
  void add_block(ChannelOp* op, size_t from, const Place& place, const Part& block);
  int64_t portion(int64_t longest_bytes, size_t count) const;

  // ---- buffers
  bool run_staged();
  ChannelOp* op_of(uint64_t chunk, uint64_t* cursor);
  std::byte* buffer(size_t rank, uint64_t chunk) const {
    return peers[rank].buffers + (chunk % buffers) * staging_bytes;
  }
  // Bytes to `to` in the buffer of `from`, of an alltoall: nothing goes to itself.
  int64_t slot(size_t from, size_t to) const {
    return static_cast<int64_t>(to < from ? to : to - 1);
  }
  void keep_own(const ChannelOp& op, uint64_t chunk);
  bool pack_next();
  bool reduce_next();
  bool unpack_next();

  // ---- direct
  bool run_direct();
  bool combine_ops(int64_t* budget);
  bool fetch_ops(int64_t* budget);
  bool combine_some(ChannelOp* op, int64_t* budget);
  bool combine_block(ChannelOp* op, const Combine& work, int64_t offset, int64_t count);
  const std::byte* input_of(ChannelOp* op, const Combine& work, size_t rank, int64_t begin,
                            int64_t count);
  bool fetch_some(ChannelOp* op, int64_t* budget);
  size_t scratch_block() const { return scratch.size() / (size + 1); }

  struct Peer {
    host::ChannelControl* control = nullptr;
    std::byte* buffers = nullptr;
    HeapView heap;
    pid_t pid = 0;
  };

  ChannelGroup group;
  size_t me;
  size_t size;
  std::vector<Peer> peers;
  size_t buffers;
  size_t staging_bytes;

  uint64_t base = 0;     // the generation, in the upper bits of all counters
  uint64_t entered = 0;  // operations of this generation
  uint64_t decided = 0;
  uint64_t combined = 0;  // whose direct stages are over
  uint64_t fetched = 0;
  uint64_t direct = 0;  // whose direct work is over everywhere
  uint64_t finished = 0;
  uint64_t freed = 0;  // operations that all ranks have finished, as last looked up
  std::array<ChannelOp*, kPosts> ops{};  // entered and not finished, by number
  ChannelOp* waiting = nullptr;          // started and not entered
  ChannelOp* last_waiting = nullptr;
  bool dead = false;  // abandoned or failed
  bool gone = false;  // a peer whose memory was to be read
  bool news = false;  // something was posted and nobody rung for it
  ArrivalWatch* watch = nullptr;
  size_t missing = kNobody;  // the rank that the watch was told of

  uint64_t chunks = 0;  // of all decided operations
  uint64_t packed = 0;
  uint64_t reduced = 0;
  uint64_t unpacked = 0;
  uint64_t pack_cursor = 0;  // operations whose chunks the stages have come to
  uint64_t reduce_cursor = 0;
  uint64_t unpack_cursor = 0;

  std::vector<const std::byte*> inputs;  // by rank, for one call of a kernel
  std::vector<const std::byte*> views;   // by rank, of small payloads
  std::vector<std::byte> gathered;       // payloads that came in several lines, by rank
  std::vector<std::byte> fused;          // of a small fused op
  std::vector<std::byte> scratch;        // blocks of inputs, by rank, and one of the result
  std::vector<uint64_t> words;           // of a post's list
  Bytes totals;
  Measured measured;
  Status failure;
};

}  // namespace rueda::shm

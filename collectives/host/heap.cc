// Free memory is in one of two sets of ranges: cold (no pages) and warm (pages that were used and
// kept, because making them anew costs about 1 ms per MB). Blocks of 64 KiB and more are spans of
// pages; smaller ones are slots of a slab, which is a span cut into slots of one size. All
// bookkeeping lies outside the shared memory, where peers can write.
//
// Whoever makes, clears or gives back pages holds no lock: the range is nobody else's meanwhile.
#include "collectives/host/heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "collectives/base/check.h"
#include "collectives/base/memory_file.h"
#include "collectives/base/rounding.h"
#include "collectives/host/heap_ranges.h"
#include "collectives/host/heap_size.h"
#include "collectives/host/segment.h"
#include "collectives/host/shared_mapping.h"
#include "collectives/host/writer_first_mutex.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace rueda::host {
namespace {

constexpr size_t kSpanBytes = 64 << 10;             // from here on a block is a span of its own
constexpr size_t kMostWarm = size_t{256} << 20;     // freed pages that are kept
constexpr size_t kPiece = size_t{64} << 20;         // of one system call
constexpr size_t kCheckedBytes = size_t{16} << 20;  // requests that are worth a look at the host

// Sizes of slots: multiples of 64 bytes, from 256 bytes on four per doubling, so that at most a
// fifth of a slot is unused.
size_t slot_bytes_for(size_t bytes) {
  if (bytes <= 256) return round_up(std::max<size_t>(bytes, 1), 64);
  return round_up(bytes, std::bit_floor(bytes - 1) / 4);
}

std::string in_mib(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

const char kNextStep[] = " (for tensors; RUEDA_HEAP_BYTES sets the size)";

Result<UniqueFd> make_file(size_t bytes) {
  const std::string what = std::string("cannot make shared memory") + kNextStep;
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, memory_file("rueda-heap", what));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return errno_status(what, errno);
  return fd;
}

// The process's heap. A forked child that joins a job of its own makes a new one; the old one stays
// mapped, private, for the tensors in it.
std::atomic<Heap*> process_heap{nullptr};

}  // namespace

struct Heap::State {
  using Range = FreeRanges::Range;
  struct Slab {
    size_t slot_bytes = 0;
    std::vector<uint32_t> free;  // slots, the next one last
    std::vector<bool> used;      // by slot
  };
  struct Span {
    size_t bytes = 0;
    std::unique_ptr<Slab> slab;  // null: one block
  };

  GuardedFd fd;
  uint64_t generation = fork_generation();
  std::shared_ptr<SharedMapping> mapping;
  std::byte* base = nullptr;
  size_t bytes = 0;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

  // Before the others. Held alone by who moves everything, shared by who makes, clears or gives
  // back pages of the file, however many do so all the time.
  WriterFirstMutex moving;
  std::mutex cooling;  // before `mutex`: who is short of cold memory waits for what is on the way
  std::mutex mutex;    // of all below
  FreeRanges cold, warm;
  std::map<size_t, Span> spans;                        // in use, by offset
  std::map<size_t, std::set<size_t>> slabs_with_room;  // slot size: offsets of slabs
  size_t in_use = 0;
  size_t peak = 0;  // of in_use

  void count(size_t more);  // with the mutex held
  Status make_pages(Range range);
  void drop_pages(Range range);
  void prefault(Range range);
  void cool_down(size_t most_warm);
  Status shortage(size_t wanted, const std::string& why);
  Result<std::pair<size_t, bool>> take_span(size_t bytes);
  void give_span(Range range);
  Result<std::byte*> allocate_span(size_t bytes, bool zeroed);
  Result<std::byte*> allocate_slot(size_t slot_bytes);
  // With the mutex held: a slot of an existing slab, or null.
  std::byte* pop_slot(size_t slot_bytes);
};

void Heap::State::count(size_t more) {
  in_use += more;
  peak = std::max(peak, in_use);
}

// ---- pages ----

Status Heap::State::make_pages(Range range) {
  for (size_t done = 0; done < range.bytes;) {
    const size_t piece = std::min(kPiece, range.bytes - done);
    if (fallocate(fd.get(), 0, static_cast<off_t>(range.offset + done),
                  static_cast<off_t>(piece)) == 0) {
      done += piece;
    } else if (errno != EINTR) {
      const Status status = errno_status("cannot reserve shared memory", errno);
      drop_pages({range.offset, done});
      return status;
    }
  }
  prefault(range);
  return {};
}

// Fills the page table, so that the first use takes no faults.
void Heap::State::prefault(Range range) {
  std::byte* const start = base + range.offset;
  if (madvise(start, range.bytes, MADV_POPULATE_WRITE) == 0) return;
  // Linux before 5.14. The pages are new and nobody else's, so writing zeros changes nothing.
  for (size_t at = 0; at < range.bytes; at += page)
    *reinterpret_cast<volatile char*>(start + at) = 0;
}

void Heap::State::drop_pages(Range range) {
  if (range.bytes == 0) return;
  if (fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(range.offset), static_cast<off_t>(range.bytes)) != 0) {
    // The pages stay. Cold memory must be zero.
    std::memset(base + range.offset, 0, range.bytes);
  }
}

// Gives pages back until at most so many bytes are warm.
void Heap::State::cool_down(size_t most_warm) {
  const std::lock_guard<std::mutex> alone(cooling);
  for (;;) {
    Range range;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (warm.total() <= most_warm) return;
      range = *warm.take_largest();
      const size_t excess = round_up(warm.total() + range.bytes - most_warm, page);
      if (range.bytes > excess) {  // its end stays warm
        warm.add({range.offset + excess, range.bytes - excess});
        range.bytes = excess;
      }
    }
    drop_pages(range);
    const std::lock_guard<std::mutex> lock(mutex);
    cold.add(range);
  }
}

// ---- spans ----

Status Heap::State::shortage(size_t wanted, const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex);
  return {Code::kResourceExhausted,
          "no shared memory for a tensor of " + in_mib(wanted) + ": " + why + "; " +
              in_mib(in_use) + " of this process's heap of " + in_mib(bytes) +
              " are in use (free tensors, or change RUEDA_HEAP_BYTES before the first init)"};
}

// A span of whole pages and whether it may hold old bytes.
Result<std::pair<size_t, bool>> Heap::State::take_span(size_t wanted) {
  const size_t size = round_up(wanted, page);
  if (size < wanted || size > bytes) return shortage(wanted, "it is larger than the heap");
  for (const bool last_try : {false, true}) {
    std::optional<size_t> offset;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (const auto kept = warm.take(size)) return std::make_pair(*kept, true);
      offset = cold.take(size);
    }
    Status status;
    if (offset && size >= kCheckedBytes) {
      // Better an error here than the system ending some process for want of memory.
      const auto available = available_memory(read_small_file);
      if (available && *available < size)
        status = {Code::kResourceExhausted, "this host has " + in_mib(*available) + " available"};
    }
    if (offset && status.ok()) status = make_pages({*offset, size});
    if (offset && status.ok()) return std::make_pair(*offset, false);
    if (offset) {
      const std::lock_guard<std::mutex> lock(mutex);
      cold.add({*offset, size});
    }
    if (last_try)
      return shortage(wanted, offset ? status.message() : "the free ranges are too small");
    cool_down(0);
  }
  return internal_error("not reached");
}

void Heap::State::give_span(Range range) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    warm.add(range);
  }
  cool_down(kMostWarm);
}

Result<std::byte*> Heap::State::allocate_span(size_t wanted, bool zeroed) {
  RUEDA_ASSIGN_OR_RETURN(const auto taken, take_span(wanted));
  const auto [offset, used_before] = taken;
  const size_t size = round_up(wanted, page);
  if (used_before && zeroed) std::memset(base + offset, 0, size);
  const std::lock_guard<std::mutex> lock(mutex);
  spans[offset].bytes = size;
  count(size);
  return base + offset;
}

// ---- slots ----

std::byte* Heap::State::pop_slot(size_t slot_bytes) {
  const auto found = slabs_with_room.find(slot_bytes);
  if (found == slabs_with_room.end() || found->second.empty()) return nullptr;
  const size_t offset = *found->second.begin();
  Slab& slab = *spans[offset].slab;
  const uint32_t slot = slab.free.back();
  slab.free.pop_back();
  slab.used[slot] = true;
  if (slab.free.empty()) found->second.erase(offset);
  count(slot_bytes);
  return base + offset + slot * slot_bytes;
}

Result<std::byte*> Heap::State::allocate_slot(size_t slot_bytes) {
  std::byte* memory = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    memory = pop_slot(slot_bytes);
  }
  if (memory == nullptr) {
    const size_t size = round_up(std::max(kSpanBytes, 8 * slot_bytes), page);
    RUEDA_ASSIGN_OR_RETURN(const auto taken, take_span(size));
    auto slab = std::make_unique<Slab>();
    slab->slot_bytes = slot_bytes;
    const auto count = static_cast<uint32_t>(size / slot_bytes);
    slab->used.resize(count);
    for (uint32_t slot = count; slot > 0; --slot) slab->free.push_back(slot - 1);
    const std::lock_guard<std::mutex> lock(mutex);
    spans[taken.first] = {size, std::move(slab)};
    slabs_with_room[slot_bytes].insert(taken.first);
    memory = pop_slot(slot_bytes);
  }
  std::memset(memory, 0, slot_bytes);
  return memory;
}

// ---- the heap ----

Heap::Heap() : state_(std::make_unique<State>()) {}
Heap::~Heap() = default;

Heap* Heap::existing() {
  Heap* const heap = process_heap.load(std::memory_order_acquire);
  return heap != nullptr && heap->state_->generation == fork_generation() ? heap : nullptr;
}

Result<Heap*> Heap::of_process(size_t bytes) {
  if (Heap* heap = existing()) return heap;
  Heap* const before = process_heap.load(std::memory_order_acquire);
  std::unique_ptr<Heap, void (*)(Heap*)> made(new Heap, [](Heap* heap) { delete heap; });
  State& state = *made->state_;
  state.bytes = round_up(std::max<size_t>(bytes, 1), state.page);
  const std::string next_step = kNextStep;
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, make_file(state.bytes));
  // No core dump of it: reading the pages that do not exist would make them.
  auto mapping = SharedMapping::of(fd.get(), state.bytes, {.inherited = true});
  if (!mapping.ok()) return mapping.status().with_message(mapping.status().message() + next_step);
  state.mapping = mapping.value();
  state.base = state.mapping->base();
  state.cold.add({0, state.bytes});
  state.fd = GuardedFd(std::move(fd));
  run_in_forked_children([] {
    // A copy instead of the memory itself: what the child writes must not reach the job.
    const Heap* const heap = process_heap.load(std::memory_order_relaxed);
    if (heap == nullptr || heap->state_->fd.get() < 0) return;
    const State& own = *heap->state_;
    if (own.generation != fork_generation()) return;  // the parent's parent's: private already
    if (mmap(own.base, own.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
             own.fd.get(), 0) == MAP_FAILED) {
      munmap(own.base, own.bytes);  // a crash at the first use is better than writing to the job
      return;
    }
    madvise(own.base, own.bytes, MADV_DONTDUMP);
  });
  Heap* expected = before;
  if (!process_heap.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel))
    return expected;  // another thread was faster
  return made.release();
}

int Heap::fd() const { return state_->fd.get(); }
std::byte* Heap::base() const { return state_->base; }
size_t Heap::bytes() const { return state_->bytes; }

bool Heap::contains(const void* memory) const {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const auto start = reinterpret_cast<uintptr_t>(state_->base);
  return at >= start && at - start < state_->bytes;
}

Status Heap::map_at(std::byte* memory, size_t bytes, void* address) {
  State& state = *state_;
  if (state.generation != fork_generation())
    return failed_precondition("this process was forked from a rank and has no heap of its own");
  const size_t size = round_up(bytes, state.page);
  const auto offset = static_cast<size_t>(memory - state.base);
  const std::shared_lock stays(state.moving);
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    const auto it = contains(memory) ? state.spans.find(offset) : state.spans.end();
    if (it == state.spans.end() || it->second.slab != nullptr || it->second.bytes < size)
      return invalid_argument("no block of shared memory of " + std::to_string(size) +
                              " bytes begins there");
  }
  if (reinterpret_cast<uintptr_t>(address) % state.page != 0)
    return invalid_argument("the address does not begin a page");
  if (mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, state.fd.get(),
           static_cast<off_t>(offset)) == MAP_FAILED)
    return errno_status("cannot map shared memory there", errno);
  madvise(address, size, MADV_DONTFORK);
  madvise(address, size, MADV_DONTDUMP);
  // Fills the page table; where the system cannot, the first use does.
  madvise(address, size, MADV_POPULATE_WRITE);
  return {};
}

Status Heap::move_to_fresh_memory() {
  State& state = *state_;
  if (state.generation != fork_generation())
    return failed_precondition("this process was forked from a rank and has no heap of its own");
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, make_file(state.bytes));
  const std::lock_guard all_stand(state.moving);
  const std::lock_guard<std::mutex> alone(state.cooling);
  const std::lock_guard<std::mutex> lock(state.mutex);
  for (const auto& [offset, span] : state.spans) {
    for (size_t done = 0; done < span.bytes;) {
      const size_t piece = std::min(kPiece, span.bytes - done);
      const ssize_t copied =
          pwrite(fd.get(), state.base + offset + done, piece, static_cast<off_t>(offset + done));
      if (copied > 0) {
        done += static_cast<size_t>(copied);
      } else if (errno != EINTR) {
        return errno_status("cannot move shared memory of " + in_mib(state.in_use), errno);
      }
    }
  }
  RUEDA_RETURN_IF_ERROR(state.mapping->become(fd.get()));
  // The number stays: at no moment is it free for another file.
  while (dup3(fd.get(), state.fd.get(), O_CLOEXEC) < 0) {
    if (errno != EINTR && errno != EBUSY)
      return errno_status("cannot keep new shared memory", errno);
  }
  for (const auto& [offset, span] : state.spans)
    madvise(state.base + offset, span.bytes, MADV_POPULATE_WRITE);  // else the first use does it
  while (const auto range = state.warm.take_largest()) state.cold.add(*range);  // has no pages now
  return {};
}

size_t Heap::in_use() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->in_use;
}

size_t Heap::peak() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->peak;
}

Result<std::byte*> Heap::allocate(size_t bytes, bool zeroed) {
  if (state_->generation != fork_generation())
    return failed_precondition("this process was forked from a rank and has no heap of its own");
  const std::shared_lock stays(state_->moving);
  return bytes < kSpanBytes && slot_bytes_for(bytes) < kSpanBytes
             ? state_->allocate_slot(slot_bytes_for(bytes))
             : state_->allocate_span(bytes, zeroed);
}

void Heap::free(std::byte* memory) {
  if (memory == nullptr) return;
  State& state = *state_;
  // In a forked child the lock may be held for ever; its copy goes with the process.
  if (state.generation != fork_generation()) return;
  const std::shared_lock stays(state.moving);
  RUEDA_CHECK(contains(memory), "this memory was not allocated here");
  const auto at = static_cast<size_t>(memory - state.base);
  FreeRanges::Range gone;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    auto it = state.spans.upper_bound(at);
    RUEDA_CHECK(it != state.spans.begin(), "memory was freed twice, or never allocated");
    --it;
    const auto& [offset, span] = *it;
    RUEDA_CHECK(at < offset + span.bytes, "memory was freed twice, or never allocated");
    if (span.slab != nullptr) {
      State::Slab& slab = *span.slab;
      const size_t slot = (at - offset) / slab.slot_bytes;
      RUEDA_CHECK(
          (at - offset) % slab.slot_bytes == 0 && slot < slab.used.size() && slab.used[slot],
          "memory was freed twice, or never allocated");
      slab.used[slot] = false;
      slab.free.push_back(static_cast<uint32_t>(slot));
      state.in_use -= slab.slot_bytes;
      auto& with_room = state.slabs_with_room[slab.slot_bytes];
      with_room.insert(offset);
      if (slab.free.size() < slab.used.size()) return;
      with_room.erase(offset);
    } else {
      RUEDA_CHECK(at == offset, "only the start of a block can be freed");
      state.in_use -= span.bytes;
    }
    gone = {offset, span.bytes};
    state.spans.erase(it);
  }
  state.give_span(gone);
}

}  // namespace rueda::host

#include "collectives/host/lent_blocks.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/host/fork_guard.h"
#include "collectives/host/heap.h"
#include "collectives/host/redirect.h"

namespace rueda::host::lent_blocks {
namespace {

using Allocate = int (*)(void**, size_t, size_t);
using Free = void (*)(void*);

constexpr size_t kBlockAlignment = 4096;  // blocks of such sizes begin a page

struct OfSize {
  std::vector<std::byte*> free;  // the one that was freed last is taken first: it is in the cache
  int64_t made = 0, wanted = 0;
  int64_t written_off = 0;  // lent, and wanted no more: not among those made, and not taken back
  bool is_short = false;    // the heap had no more
};

struct Stock {
  Heap* heap = nullptr;
  uint64_t generation = 0;  // of the process that it is of
  Allocate own_allocate = nullptr;
  Free own_free = nullptr;

  std::mutex mutex;  // of all below
  std::unordered_map<size_t, OfSize> sizes;
  std::unordered_map<const void*, size_t> blocks;  // all that were made: their sizes

  // With the mutex held.
  void shrink(OfSize* size);  // to what is wanted; what is lent comes back when it is freed
  void give_back(std::byte* block);
};

std::atomic<Stock*> stock{nullptr};  // never destroyed: tensors are freed until the process ends
std::atomic<uint64_t> turn{1};       // end() begins another one
thread_local uint64_t begun = 0;     // the turn in which this thread called begin()

void Stock::shrink(OfSize* size) {
  while (size->made > size->wanted && !size->free.empty()) {
    give_back(size->free.back());
    size->free.pop_back();
    --size->made;
  }
  const int64_t beyond = std::max<int64_t>(size->made - size->wanted, 0);
  size->made -= beyond;
  size->written_off += beyond;
}

void Stock::give_back(std::byte* block) {
  blocks.erase(block);
  heap->free(block);
}

// Null: there is none.
std::byte* take(Stock* from, size_t bytes) {
  const std::lock_guard<std::mutex> lock(from->mutex);
  const auto found = from->sizes.find(bytes);
  if (found == from->sizes.end()) return nullptr;
  OfSize& size = found->second;
  if (size.free.empty()) {
    if (size.made >= size.wanted || size.is_short) return nullptr;
    const auto made = from->heap->allocate(bytes, false);
    size.is_short = !made.ok();
    if (size.is_short) return nullptr;
    ++size.made;
    from->blocks.emplace(made.value(), bytes);
    size.free.push_back(made.value());
  }
  std::byte* const block = size.free.back();
  size.free.pop_back();
  return block;
}

int allocate(void** memory, size_t alignment, size_t bytes) {
  Stock* const from = stock.load(std::memory_order_acquire);
  if (bytes >= kLeastBytes && begun == turn.load(std::memory_order_relaxed) &&
      alignment <= kBlockAlignment && fork_generation() == from->generation) {
    if (std::byte* const block = take(from, bytes)) {
      *memory = block;
      return 0;
    }
  }
  return from->own_allocate(memory, alignment, bytes);
}

void release(void* memory) {
  Stock* const to = stock.load(std::memory_order_acquire);
  if (!to->heap->contains(memory)) return to->own_free(memory);
  if (fork_generation() != to->generation) return;  // it is the parent's
  const std::lock_guard<std::mutex> lock(to->mutex);
  const auto block = to->blocks.find(memory);
  if (block == to->blocks.end()) return;
  OfSize& size = to->sizes[block->second];
  if (size.written_off > 0) {
    --size.written_off;
    to->give_back(static_cast<std::byte*>(memory));
  } else {
    size.free.push_back(static_cast<std::byte*>(memory));
  }
}

template <class Function>
Function function_named(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

Status lend_to(const char* library) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (stock.load(std::memory_order_acquire) != nullptr) return {};
  Heap* const heap = Heap::existing();
  if (heap == nullptr) return failed_precondition("there is no memory that ranks share");
  auto* const made = new Stock;
  made->heap = heap;
  made->generation = fork_generation();
  made->own_allocate = function_named<Allocate>("posix_memalign");
  made->own_free = function_named<Free>("free");
  stock.store(made, std::memory_order_release);  // before the first call comes
  const std::array<Redirection, 2> redirections{{
      {"free", reinterpret_cast<void*>(&release)},
      {"posix_memalign", reinterpret_cast<void*>(&allocate)},
  }};
  if (made->own_allocate != nullptr && made->own_free != nullptr &&
      redirect_calls(library, redirections) == 0)
    return {};
  stock.store(nullptr, std::memory_order_release);
  delete made;
  return failed_precondition(std::string("no library ") + library +
                             " is loaded that calls posix_memalign and free");
}

void expect(size_t bytes, int64_t count) {
  Stock* const all = stock.load(std::memory_order_acquire);
  if (all == nullptr || bytes < kLeastBytes || fork_generation() != all->generation) return;
  const std::lock_guard<std::mutex> lock(all->mutex);
  OfSize& size = all->sizes[bytes];
  size.wanted += count;
  size.is_short = false;
  all->shrink(&size);
}

void begin() {
  if (stock.load(std::memory_order_acquire) != nullptr)
    begun = turn.load(std::memory_order_relaxed);
}

void end() { turn.fetch_add(1, std::memory_order_relaxed); }

}  // namespace rueda::host::lent_blocks

// Memory that the ranks of a host share: the process's heap behind the C ABI, and its peers'.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/c/context.h"
#include "collectives/host/heap.h"
#include "collectives/host/heap_size.h"
#include "collectives/host/lent_blocks.h"

using rueda::Result;
using rueda::Status;
using rueda::c_abi::Member;
using rueda::host::Heap;
using rueda::host::PeerHeap;

namespace {

// Made by init where ranks share memory; a rank that is alone, or will join a running job, makes it
// here.
Result<Heap*> heap_of(const rueda_context* context) {
  if (const auto* const later = rueda::c_abi::provisional(context)) {
    return Heap::of_process(rueda::host::heap_size(later->heap_bytes, later->expected.local_size));
  }
  RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
  const rueda::Rank ranks = member->runtime->membership().local_size;
  return Heap::of_process(rueda::host::heap_size(member->heap_bytes, ranks));
}

int32_t allocate(rueda_context* context, size_t bytes, bool zeroed, void** memory,
                 rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (memory == nullptr) return rueda::invalid_argument("nowhere to put the memory (NULL)");
    *memory = nullptr;
    RUEDA_ASSIGN_OR_RETURN(Heap* const heap, heap_of(context));
    RUEDA_ASSIGN_OR_RETURN(*memory, heap->allocate(bytes, zeroed));
    return {};
  });
}

// A place in a peer's heap, or in this process's own, as it lies here. What has been handed out
// stays mapped, as its users may outlive the job: one mapping for each heap, until the process
// ends.
Result<std::byte*> address_of(const Member& member, rueda::Rank rank, uint64_t place,
                              size_t bytes) {
  const auto& membership = member.runtime->membership();
  const auto& heaps = member.runtime->host_memory().heaps;  // none where a rank is alone
  if (rank < 0 || rank >= membership.size)
    return rueda::invalid_argument("there is no rank " + std::to_string(rank));
  Heap* const own = rank == membership.rank ? Heap::existing() : nullptr;
  const auto at = static_cast<size_t>(rank);
  const std::shared_ptr<PeerHeap> peer = own == nullptr && at < heaps.size() ? heaps[at] : nullptr;
  if (own == nullptr && peer == nullptr) {
    return rueda::failed_precondition("this rank shares no memory with rank " +
                                      std::to_string(rank));
  }
  const size_t room = own != nullptr ? own->bytes() : peer->bytes();
  if (place > room || bytes > room - place) {
    return rueda::invalid_argument("the shared memory of rank " + std::to_string(rank) +
                                   " has no such place");
  }
  if (own != nullptr) return own->base() + place;
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<PeerHeap>>;
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::find(kept->begin(), kept->end(), peer) == kept->end()) kept->push_back(peer);
  return peer->base() + place;
}

}  // namespace

extern "C" {

int32_t rueda_alloc(rueda_context* context, size_t bytes, void** memory, rueda_error* error) {
  return allocate(context, bytes, true, memory, error);
}

int32_t rueda_alloc_uncleared(rueda_context* context, size_t bytes, void** memory,
                              rueda_error* error) {
  return allocate(context, bytes, false, memory, error);
}

int32_t rueda_map_memory(void* memory, size_t bytes, void* address, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    Heap* const heap = Heap::existing();
    if (heap == nullptr) return rueda::failed_precondition("there is no memory of rueda_alloc yet");
    return heap->map_at(static_cast<std::byte*>(memory), bytes, address);
  });
}

int32_t rueda_memory_place(const void* memory, uint64_t* place, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (place == nullptr) return rueda::invalid_argument("nowhere to put the place (NULL)");
    const Heap* const heap = Heap::existing();
    if (heap == nullptr || !heap->contains(memory))
      return rueda::invalid_argument("this is not memory of rueda_alloc");
    *place = static_cast<uint64_t>(static_cast<const std::byte*>(memory) - heap->base());
    return {};
  });
}

int32_t rueda_peer_memory(rueda_context* context, int32_t rank, uint64_t place, size_t bytes,
                          void** memory, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (memory == nullptr) return rueda::invalid_argument("nowhere to put the memory (NULL)");
    *memory = nullptr;
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    RUEDA_ASSIGN_OR_RETURN(*memory, address_of(*member, rank, place, bytes));
    return {};
  });
}

uint64_t rueda_compare_exchange(uint64_t* word, uint64_t expected, uint64_t desired) {
  std::atomic_ref<uint64_t>(*word).compare_exchange_strong(expected, desired);
  return expected;
}

int32_t rueda_lend_memory(const char* library, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (library == nullptr) return rueda::invalid_argument("no library (NULL)");
    return rueda::host::lent_blocks::lend_to(library);
  });
}

void rueda_lend_blocks(size_t bytes, int64_t count) {
  rueda::host::lent_blocks::expect(bytes, count);
}

void rueda_lend_begin() { rueda::host::lent_blocks::begin(); }

void rueda_lend_end() { rueda::host::lent_blocks::end(); }

void rueda_free(void* memory) {
  // A forked child may still hold tensors of its parent's heap: they are not its own to free.
  Heap* const heap = Heap::existing();
  if (heap != nullptr && heap->contains(memory)) heap->free(static_cast<std::byte*>(memory));
}

}  // extern "C"

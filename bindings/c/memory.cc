// Memory that the ranks of a host share: the process's heap behind the C ABI.
#include "bindings/c/context.h"
#include "collectives/host/heap.h"
#include "collectives/host/heap_size.h"

using rueda::Status;
using rueda::host::Heap;

namespace {

int32_t allocate(rueda_context* context, size_t bytes, bool zeroed, void** memory,
                 rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (memory == nullptr) return rueda::invalid_argument("nowhere to put the memory (NULL)");
    *memory = nullptr;
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    // Made by init where ranks share memory; a rank that is alone makes it here.
    const rueda::Rank ranks = member->runtime->membership().local_size;
    RUEDA_ASSIGN_OR_RETURN(Heap* const heap,
                           Heap::of_process(rueda::host::heap_size(member->heap_bytes, ranks)));
    RUEDA_ASSIGN_OR_RETURN(*memory, heap->allocate(bytes, zeroed));
    return {};
  });
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

void rueda_free(void* memory) {
  // A forked child may still hold tensors of its parent's heap: they are not its own to free.
  Heap* const heap = Heap::existing();
  if (heap != nullptr && heap->contains(memory)) heap->free(static_cast<std::byte*>(memory));
}

}  // extern "C"

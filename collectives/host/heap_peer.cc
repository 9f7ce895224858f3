#include <fcntl.h>
#include <unistd.h>

#include "collectives/host/heap.h"
#include "collectives/host/shared_mapping.h"

namespace rueda::host {

struct PeerHeap::State {
  std::shared_ptr<SharedMapping> mapping;
};

PeerHeap::PeerHeap() : state_(std::make_unique<State>()) {}
PeerHeap::~PeerHeap() = default;

Result<std::shared_ptr<PeerHeap>> PeerHeap::attach(UniqueFd fd) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
    return failed_precondition("a peer's heap is not sealed against shrinking");
  const off_t end = lseek(fd.get(), 0, SEEK_END);
  if (end <= 0 || end % sysconf(_SC_PAGESIZE) != 0)
    return failed_precondition("a peer's heap has " + std::to_string(end) + " bytes");
  std::shared_ptr<PeerHeap> heap(new PeerHeap);
  auto mapping = SharedMapping::of(fd.get(), static_cast<size_t>(end), {});
  if (!mapping.ok()) {
    return mapping.status().with_message(mapping.status().message() +
                                         " (for tensors; lower RUEDA_HEAP_BYTES there)");
  }
  heap->state_->mapping = mapping.value();
  return heap;
}

std::byte* PeerHeap::base() const { return state_->mapping->base(); }
size_t PeerHeap::bytes() const { return state_->mapping->bytes(); }

}  // namespace rueda::host

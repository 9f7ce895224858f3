// Heap: memory for tensors that the local peers map too, so that collectives work on it in place.
//
// One per process: a sparse, sealed memfd of fixed size (pages exist only where something is
// allocated), mapped once by its owner and by every local peer when they connect. It lives as long
// as the process and serves every context of it, so tensors outlive shutdown and init.
//
// Pages are created when memory is allocated (a shortage is an error there, never a SIGBUS later)
// and given back to the system when a large block is freed.
// Fork:    the child's copy of the own heap becomes private at the same addresses; peers' heaps are
//          gone there.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "collectives/base/status.h"
#include "collectives/host/fork_guard.h"

namespace rueda::host {

// This process's heap: made at the first call with that size; later calls ignore `bytes`. Lives
// until the process ends.
class Heap {
 public:
  static Result<Heap*> of_process(size_t bytes);
  // The heap, if of_process has made one; else null.
  static Heap* existing();

  int fd() const;
  std::byte* base() const;
  size_t bytes() const;  // of address space

  // At least 64-byte aligned (page-aligned from 64 KiB on). kResourceExhausted says how much is in
  // use and what to do. bytes 0 gives a valid pointer too. What is not zeroed may hold what was in
  // freed memory of this heap.
  Result<std::byte*> allocate(size_t bytes, bool zeroed = true);
  // Memory that allocate gave, or null.
  void free(std::byte* memory);
  bool contains(const void* memory) const;
  // Puts the pages of `memory` (a block of 64 KiB or more, of at least `bytes`) at `address` too,
  // in place of what is mapped there: both are whole pages of the caller's, who unmaps `address`
  // before the block is freed. Forked children have nothing there, core dumps neither.
  Status map_at(std::byte* memory, size_t bytes, void* address);
  // What is allocated is copied into new memory, at the same addresses; the descriptor keeps its
  // number. Nobody may write to it meanwhile: that would be lost. Who had mapped the old memory, as
  // a process that may still run does, reaches it no more. Peers have to map the new one.
  Status move_to_fresh_memory();
  size_t in_use() const;  // bytes allocated now
  size_t peak() const;    // the most that were allocated at any time

 private:
  Heap();
  ~Heap();
  struct State;
  std::unique_ptr<State> state_;
};

// A local peer's heap, mapped here. Ranks as threads share the one mapping.
class PeerHeap {
 public:
  static Result<std::shared_ptr<PeerHeap>> attach(UniqueFd fd);
  ~PeerHeap();
  std::byte* base() const;
  size_t bytes() const;

 private:
  PeerHeap();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rueda::host

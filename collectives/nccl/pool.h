// BlockPool: memory of GPUs for a framework's tensors that comes from ncclMemAlloc, and is known
// here, so that communicators find the block in which a tensor lies and register it.
//
//   framework's allocator --allocate--> ncclMemAlloc, known from now on
//                         --free------> unknown -> the GPU is done -> every communicator lets go of
//                                       it (deregisters) -> ncclMemFree
//
// One for the process: a framework calls plain functions for its memory, from any thread, and frees
// some when the job is over.
//
// Threads: any; free() waits for what the GPU is doing, and frees its block itself, so that another
//          thread's call neither ends without it nor waits for its GPU.
// End:     a block that NCCL cannot let go of now (it is starting work, or its abort has not come
//          back) is freed by a later call of allocate or free.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/nccl/block.h"

namespace rueda::nccl {

class BlockPool {
 public:
  // A communicator that registers blocks.
  class User {
   public:
    virtual ~User() = default;
    // Nothing on the GPU uses it any more. Any thread; does not wait.
    virtual void let_go(const std::byte* data) = 0;
  };

  static BlockPool& of_process();
  BlockPool();

  // From now on there is memory of this device. Unimplemented: this NCCL gives none.
  Status open(cuda::DevicePtr device, std::shared_ptr<const Library> library);
  // Null: there is none left, or the device has not been opened.
  void* allocate(size_t bytes, int device);
  void free(void* memory);

  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  // The block that an address lies in; no data: none of the pool's.
  Block find(const std::byte* address) const;
  // Those on a device, in the order in which they were given out.
  std::vector<Block> blocks(int device) const;
  void add_user(std::weak_ptr<User> user);

 private:
  struct Source {
    cuda::DevicePtr device;
    std::shared_ptr<const Library> library;
  };
  struct Known {
    Block block;
    uint64_t number = 0;
  };
  // `blocks`, which only this call has, and what was left behind before: freed, or left behind.
  void free_with_late(std::vector<Block> blocks);

  const pid_t process_;  // not a fork of it
  std::atomic<size_t> count_{0};
  mutable std::mutex mutex_;
  std::map<int, Source> sources_;
  std::map<const std::byte*, Known> known_;
  uint64_t given_ = 0;
  std::vector<Block> late_;  // could not be freed yet
  std::vector<std::weak_ptr<User>> users_;
};

}  // namespace rueda::nccl
